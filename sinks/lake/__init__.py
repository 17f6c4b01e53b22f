"""The lake: immutable Parquet segments, manifests that make epochs real, Delta tables folded from them, readers of one
moment."""
