"""The log: one protocol, an embedded implementation on disk and one on Kafka."""
