"""Incremental SQL queries, read page by page behind a watermark."""
