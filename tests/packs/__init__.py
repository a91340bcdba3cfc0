"""Errors of client libraries: what an engineer expects of each, how it is provoked, and the verdict of redrive."""
