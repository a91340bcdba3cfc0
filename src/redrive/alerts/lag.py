"""Deprecated: `Lag` is in `redrive.types`."""

from redrive._internal.lazy_names import renamed

__getattr__ = renamed(__name__, "redrive.alerts.facts.probes", "redrive.types")
