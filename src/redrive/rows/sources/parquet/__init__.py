"""Parquet files, one row group at a time."""
