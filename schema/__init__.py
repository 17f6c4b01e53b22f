"""What two rooms agree on: wire messages, table schemas, identities, metrics, errors, hardware, configuration."""
