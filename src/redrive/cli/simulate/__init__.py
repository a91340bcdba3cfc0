"""`redrive simulate`: one file for each model."""

from importlib import import_module

from redrive.cli.simulate.noun import app

__all__ = ["app"]

# In the order in which the help lists their commands.
for _name in ("contention", "herd"):
    import_module(f"redrive.cli.simulate.{_name}")
