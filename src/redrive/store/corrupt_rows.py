"""Rows that nobody of ours can have written, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import NoResultFound

from redrive.errors import RedriveError, StoreError


@contextmanager
def making_sense(of: str) -> Iterator[None]:
    """A row that makes no sense ends in a sentence; what was stumbled over is its cause."""
    try:
        yield
    except RedriveError:
        raise
    except (ValueError, TypeError, LookupError, NoResultFound) as error:
        raise StoreError(
            f"what the store holds of {of} makes no sense ({type(error).__name__}: {error}): if it was changed by "
            "hand, undo that"
        ) from error
