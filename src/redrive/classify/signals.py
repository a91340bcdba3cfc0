"""What is no failure at all: orders to stop."""

from __future__ import annotations

from redrive.classify.names import type_names


def is_stop_signal(error: BaseException) -> bool:
    """Whether the exception says "stop": cancellation, Ctrl-C, exit. Such a thing is never judged or repeated."""
    return is_stop_type(type(error))


def is_stop_type(cls: type[BaseException]) -> bool:
    """Whether exceptions of the class say "stop"."""
    # concurrent.futures' CancelledError alone is an Exception.
    return not issubclass(cls, Exception) or "concurrent.CancelledError" in type_names(cls)
