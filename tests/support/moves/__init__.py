"""Clusters that the tools of `insync.moves` change."""
