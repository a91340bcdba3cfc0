"""SQLite tables as a sink."""
