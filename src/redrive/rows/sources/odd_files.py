"""A file of a glob that cannot be read like the others: it is set aside as one letter, and the others are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from redrive.errors import SourceError
from redrive.letters import ErrorType
from redrive.rows.batch import Batch, Received, Unreadable
from redrive.rows.sources import file_identity
from redrive.rows.sources.files import DamagedFile

_RECORD = frozenset({"path", "size", "mtime", "digest", "reason"})
_SAMPLES = 256


def is_odd(name: str, error: SourceError, names: Sequence[str]) -> bool:
    """Whether an error is a reason to set a file aside.

    A damaged file is not odd: some of its rows may have been loaded, and the run ends at the damage. Nor is a file that
    is gone, or the only one.
    """
    return len(names) > 1 and not isinstance(error, DamagedFile) and os.path.exists(name)


def check_that_one_is_good(names: Sequence[str], look: Callable[[str], object]) -> None:
    """Raise the error of the last file where every file is odd; `look` raises what is wrong with one."""
    odd: SourceError | None = None
    for name in names if len(names) > 1 else ():
        try:
            look(name)
        except SourceError as error:
            if not is_odd(name, error, names):
                return  # reading it says so, where it is its turn
            odd = error
        else:
            return
    if odd is not None:
        raise SourceError(f"none of the {len(names)} files can be read; the last one: {odd}")


def set_aside(name: str, error: SourceError, position: Mapping[str, Any], *, done: int) -> Batch:
    """Return a batch with no row, and the letter of a file."""
    found = os.stat(name)
    record = {
        "path": name,
        "size": found.st_size,
        "mtime": datetime.fromtimestamp(found.st_mtime, UTC).isoformat(),
        "digest": file_identity.content(name, found.st_size, samples=_SAMPLES),
        "reason": str(error),
    }
    why = f"the file was set aside, and an unknown number of rows with it: {error}"
    letter = Unreadable(record, why, "file", error_type=ErrorType.FILE)
    return Batch(Received([]), lambda place: "file", position, name, [letter], done)


def refuse_file(raw: Any) -> None:
    """Raise ValueError for the record of a file that was set aside: its rows are not in the letter."""
    if isinstance(raw, Mapping) and raw.keys() == _RECORD:
        raise ValueError(
            f"{raw['path']} was set aside as a file: fix it, run a pipeline over it, then discard the letter"
        )
