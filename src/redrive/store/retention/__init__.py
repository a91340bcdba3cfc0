"""How long finished work is kept, and how it is purged or forgotten."""
