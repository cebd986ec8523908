"""One connection to a broker that speaks Kafka's protocol, ours or Apache Kafka."""

import insync.wire  # noqa: F401 - first of all: it keeps kio from importing Hypothesis
