"""The log on Apache Kafka, through kafka-python."""
