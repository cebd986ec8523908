"""Simulated runs of whole clusters on virtual time: the real broker code, one seed per run."""
