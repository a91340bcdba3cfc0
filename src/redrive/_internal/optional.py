"""Optional dependencies: a missing one is a sentence with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Guard the imports of an extra."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"{missing.name} is not installed: pip install 'redrive[{extra}]'", name=missing.name
        ) from None
