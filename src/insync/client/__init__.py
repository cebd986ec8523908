"""Clients of brokers that speak Kafka's protocol: Insync's or Apache Kafka's."""

import insync.wire  # noqa: F401 - before kio: it keeps kio from importing Hypothesis
