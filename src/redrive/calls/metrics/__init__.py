"""Counts of a service's calls: counters in memory, windows of time, and the thread that publishes them to a store."""
