"""Clusters of processes: clients of them, their commands, their logs and files."""
