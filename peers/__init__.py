"""Other people's software, run beside us: to be compared with, and to be spoken to."""
