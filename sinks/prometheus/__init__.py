"""Fleet and run series for Prometheus, from the cumulative counters of fleetscope.metrics (DESIGN 3.7)."""
