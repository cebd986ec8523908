"""One connection to a broker that speaks Kafka's protocol, ours or Apache Kafka."""
