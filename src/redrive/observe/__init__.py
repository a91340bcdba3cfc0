"""Logs, metrics, traces and dashboards of attempts, events and stores, for other programs to read."""

from redrive._internal.masking import mask_value

__all__ = ["mask_value"]
