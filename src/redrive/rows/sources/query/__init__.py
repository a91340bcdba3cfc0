"""Incremental SQL queries, read page by page after a watermark."""
