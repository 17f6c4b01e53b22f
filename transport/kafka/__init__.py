"""The log on Apache Kafka, through kafka-python."""

import logging

# In an outage it writes five lines a second, and every failure reaches our caller as an exception anyway. Whoever wants
# them sets the level before the log is opened.
if logging.getLogger("kafka").level == logging.NOTSET:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
