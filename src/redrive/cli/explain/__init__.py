"""`redrive explain`: what becomes of an error, and what a policy amounts to."""

from redrive.cli.explain.command import app

__all__ = ["app"]
