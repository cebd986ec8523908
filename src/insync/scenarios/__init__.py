"""The documents' worked examples as text, and the players that run them on the rules."""
