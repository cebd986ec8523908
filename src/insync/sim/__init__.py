"""Whole clusters on virtual time: the real broker code, one seed, one life."""
