"""Replay of rejected rows through a pipeline."""
