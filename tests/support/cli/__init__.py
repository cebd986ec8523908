"""Lag reports, made up for the commands that show them."""
