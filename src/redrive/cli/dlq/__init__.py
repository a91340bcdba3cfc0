"""`redrive dlq`: one file per group of commands."""

from importlib import import_module

from redrive.cli.dlq.noun import app

__all__ = ["app"]

# In the order in which the help lists their commands.
for _name in ("list", "show", "replay", "edit", "resolve", "transfer"):
    import_module(f"redrive.cli.dlq.{_name}")
