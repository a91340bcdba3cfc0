"""A real HTTP server on loopback that fails as it is told, and counts what reached it."""
