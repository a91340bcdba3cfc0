"""Adapters that put a service below an HTTP client: httpx and requests."""
