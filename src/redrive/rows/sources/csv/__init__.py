"""CSV and TSV files: records are found by a scanner over blocks of bytes, and read as frames of text."""
