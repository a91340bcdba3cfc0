"""Adapters that put a service below an HTTP client: httpx and requests. `outgoing` is what both put on a request."""
