"""Paginated APIs, fetched through a service."""
