"""Frozen values that all packages share: verdicts and attempts, runs, tasks, letters and alerts."""

from redrive._internal.lazy_names import renamed

# The values of calls were importable from here before this was a package.
__getattr__ = renamed(__name__, "redrive.model.calls", "redrive.events or redrive.types")
