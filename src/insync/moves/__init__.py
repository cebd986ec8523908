"""Plan, execute, watch and end a reassignment with its throttle, on Insync or Apache Kafka."""
