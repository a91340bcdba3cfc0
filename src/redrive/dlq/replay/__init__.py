"""Replay: open letters go back through a target; each is claimed, sent, and marked by its outcome."""
