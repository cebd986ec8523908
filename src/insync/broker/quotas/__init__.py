"""KIP-73: which fetches pass and which wait."""
