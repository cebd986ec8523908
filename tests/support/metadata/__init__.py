"""Metadata stores of each kind, and a process that uses one."""
