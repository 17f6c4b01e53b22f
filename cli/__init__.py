"""The `fleetscope` command, one module a noun."""
