"""NDJSON files: one JSON object per line, with exact numbers."""
