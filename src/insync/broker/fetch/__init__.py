"""Fetch, its sessions and reads, and ListOffsets."""
