"""Errors of client libraries: what an engineer expects of each, how it is provoked, and what redrive says."""
