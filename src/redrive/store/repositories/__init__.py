"""What a store holds, as objects with queries: runs, tasks, services, and what processes share."""
