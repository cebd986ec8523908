"""Brokers with TLS and SASL, as far as a client notices."""
