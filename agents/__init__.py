"""What runs on a training host. Import `profiler`, `node`, `collectors` or `simulated` by name."""
