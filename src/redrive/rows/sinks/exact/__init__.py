"""Whether a value stays the same in a column; values that would change are rejected."""
