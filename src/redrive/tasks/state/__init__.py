"""The state of a run in the store: claims, results, transitions, and the lease of its executor."""
