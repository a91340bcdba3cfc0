"""Editing letters before a replay."""
