"""A real Apache Kafka of our own: jars by Maven, one KRaft node on loopback, for tests and for trying it."""
