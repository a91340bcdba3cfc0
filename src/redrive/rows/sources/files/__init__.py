"""Files as input: globs, compression, identity, changes while they are read."""
