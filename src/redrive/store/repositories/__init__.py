"""The contents of a store, as objects with queries: runs, tasks, services, and what processes share."""
