"""What brokers saw and decided, as tables: rows, blocks of them, and their replay."""
