"""Connections, and the handlers that need no partition."""
