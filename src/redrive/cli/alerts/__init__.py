"""`redrive alerts`: one file per group of commands."""

from importlib import import_module

from redrive.cli.alerts.noun import app

__all__ = ["app"]

# In the order in which the help lists their commands.
for _name in ("list", "rules", "resolve", "silences"):
    import_module(f"redrive.cli.alerts.{_name}")
