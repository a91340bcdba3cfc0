"""Writing batches: deduplication by key, the sink's write in a thread, letters and the checkpoint."""
