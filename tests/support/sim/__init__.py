"""Real brokers on virtual time, and clients of them."""
