"""Killable calls: one call in a process of its own, which is killed at its timeout."""
