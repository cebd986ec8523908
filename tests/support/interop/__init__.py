"""Other people's clients and a browser."""
