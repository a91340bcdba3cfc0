"""The watch: one process of all that share a store evaluates levels, deadlines and services."""
