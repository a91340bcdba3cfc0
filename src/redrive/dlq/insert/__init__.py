"""Putting letters: the row of a rejected record, its identity, and the open letter that it belongs to."""
