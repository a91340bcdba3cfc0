"""The parts of `redrive demo`: the servers around three programs, their directory, and the outcome."""
