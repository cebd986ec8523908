"""Bytes to messages and back, without sockets."""
