"""Handlers of topics, configs, reassignments and elections."""
