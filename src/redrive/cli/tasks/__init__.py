"""`redrive tasks`: one file per group of commands."""

from importlib import import_module

from redrive.cli.tasks.noun import app

__all__ = ["app"]

# In the order in which the help lists their commands.
for _name in ("list", "show", "logs", "resolve", "backfill"):
    import_module(f"redrive.cli.tasks.{_name}")
