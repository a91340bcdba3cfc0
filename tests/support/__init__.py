"""Shared by tests: servers, stores, processes, terminals, and the scenes of several suites."""
