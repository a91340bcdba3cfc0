"""DuckDB tables as a sink."""
