"""Plan, execute, watch and end a reassignment with its throttle, on whoever's brokers."""
