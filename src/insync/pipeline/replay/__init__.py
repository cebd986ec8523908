"""Recorded events through the rules, compiled by Numba. Arrow tables in, arrays out; no Spark."""
