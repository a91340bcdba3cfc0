"""Errors for stored rows that redrive cannot have written, as after a change by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import NoResultFound

from redrive.errors import RedriveError, StoreError


@contextmanager
def corrupt_row_as_store_error(of: str) -> Iterator[None]:
    """Turn an error of decoding stored rows into a StoreError, with the error as its cause.

    Args:
        of: what the rows hold, for the message.
    """
    try:
        yield
    except RedriveError:
        raise
    except (ValueError, TypeError, LookupError, NoResultFound) as error:
        raise StoreError(
            f"the store's {of} cannot be decoded ({type(error).__name__}: {error}): a row was probably changed by "
            "hand; undo that change"
        ) from error
