"""Third-party clients and a browser."""
