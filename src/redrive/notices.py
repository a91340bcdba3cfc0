"""Deprecated: the names of this module are in `redrive.events` and `redrive.types`."""

from redrive._internal.lazy_names import renamed

__getattr__ = renamed(__name__, "redrive.model.alerts", "redrive.events or redrive.types")
