"""Worker processes: forked from a warm server, given one task at a time, killed at its timeout."""
