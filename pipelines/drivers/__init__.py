"""Who runs the graph: the epoch loop of a worker, and the same graph as a bounded job on a portable runner."""
