"""What `redrive demo` plays: the world around three programs, the directory they lie in, and what they came to."""
