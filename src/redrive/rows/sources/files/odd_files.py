"""A file of a glob that cannot be read like the others: it is set aside as one letter, and the others are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from redrive.errors import SourceError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Batch, Received, Unreadable
from redrive.rows.sources.files import identity
from redrive.rows.sources.files.files import DamagedFile
from redrive.rows.sources.files.version import ChangedFile
from redrive.rows.sources.source import Misfit

_RECORD = frozenset({"path", "size", "mtime", "digest", "reason"})
_SAMPLES = 256


def is_odd(name: str, error: SourceError, names: Sequence[str]) -> bool:
    """Whether an error is a reason to set a file aside.

    A damaged file is not odd: some of its rows may have been loaded, and the run ends at the damage. Nor is a file that
    is being written, is gone, or the only one.
    """
    return len(names) > 1 and not isinstance(error, DamagedFile | ChangedFile) and os.path.exists(name)


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


class FileFitCheck:
    """Tells which of several files do not fit the check or the sink."""

    def __init__(
        self,
        misfit: Misfit | None,
        names: Sequence[str],
        partitions: Mapping[str, Mapping[str, Any]],
        columns_of: Callable[[str], Sequence[str] | None],
    ) -> None:
        """`columns_of` reads the columns of a file: None where it has none, a SourceError where it is odd anyway."""
        self._misfit = misfit
        self._partitions = partitions
        if misfit is not None and not (len(names) > 1 and any(self._fits(name, columns_of) for name in names)):
            self._misfit = None  # there is nothing to choose from, so that the run ends with what is wrong

    def objection(self, name: str, columns: Sequence[str]) -> SourceError | None:
        """Return why a file with these columns is set aside; None where it is not."""
        every = tuple(dict.fromkeys((*columns, *self._partitions.get(name, ()))))
        reason = None if self._misfit is None else self._misfit(every)
        return None if reason is None else SourceError(f"{name} does not fit: {reason}")

    def _fits(self, name: str, columns_of: Callable[[str], Sequence[str] | None]) -> bool:
        try:
            columns = columns_of(name)
        except SourceError:
            return False
        return columns is not None and self.objection(name, columns) is None


def set_aside(name: str, error: SourceError, position: Mapping[str, Any], *, done: int) -> Batch:
    """Return a batch with no row, and the letter of a file."""
    found = os.stat(name)
    record = {
        "path": name,
        "size": found.st_size,
        "mtime": datetime.fromtimestamp(found.st_mtime, UTC).isoformat(),
        "digest": identity.content(name, found.st_size, samples=_SAMPLES),
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
