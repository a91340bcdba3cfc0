"""Whom to tell, when, and in which words."""
