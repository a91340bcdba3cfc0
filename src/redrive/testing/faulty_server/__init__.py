"""A real HTTP server on loopback that fails as configured, and records the requests that reached it."""
