"""Files that cannot be read: of another format, or set aside because they do not fit the other files of a glob.

A file that is set aside becomes one letter, and the other files are read. Used by the sources of files.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from redrive.errors import SourceError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Batch, Received, Unreadable
from redrive.rows.sources.files import identity
from redrive.rows.sources.files.files import DamagedFile
from redrive.rows.sources.files.identity import ChangedFile
from redrive.rows.sources.source import Misfit

START = 4_096  # bytes that show what a file is; a page may begin with empty lines
ONE_OBJECT_PER_LINE = "Write one object per line, for an array as with jq -c '.[]'"
_HTML = re.compile(rb"\A\s*<(?:!--|(?:!doctype html|html|head|body|title|meta|script|style|table)\b)", re.IGNORECASE)
_XML = re.compile(rb"\A\s*<(?:\?xml|!doctype)\b", re.IGNORECASE)
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|\0\0\xfe\xff|(?:[\t\n\r -~]\0){4}|(?:\0[\t\n\r -~]){4}")
_RECORD = frozenset({"path", "size", "mtime", "digest", "reason"})
_SAMPLES = 256


def refuse_markup(name: str, start: bytes, expected: str) -> None:
    """Raise SourceError if a file begins as HTML or XML does.

    Args:
        expected: the format the file is read as: "CSV".
    """
    if _HTML.match(start):
        raise SourceError(
            f"{name} is an HTML page, not {expected}: it may be the error page of a download; fetch the file again"
        )
    if _XML.match(start):
        raise SourceError(f"{name} is an XML file, not {expected}: convert it to {expected} first")


def refuse_utf_16(name: str, start: bytes) -> None:
    """Raise SourceError if a file begins as UTF-16 or UTF-32 does."""
    if not _UTF_16.match(start):
        return
    is_wide = start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    encoding = "UTF-32" if is_wide else "UTF-16"
    raise SourceError(f"{name} is {encoding}: convert it to UTF-8 first, as with iconv -f {encoding} -t UTF-8")


def refuse_json_document(name: str, start: bytes) -> None:
    """Raise SourceError if a file begins as JSON over several lines does.

    Its last object may stand on a line by itself, so that not every line would be rejected.
    """
    first, *rest = [line.strip() for line in start.splitlines() if line.strip()][:2] or [b""]
    is_array = first == b"[" or (first.startswith(b"[{") and first.endswith(b","))
    is_object = first == b"{" and bool(rest) and rest[0].startswith(b'"')
    if is_array or is_object:
        kind = "array" if is_array else "object"
        raise SourceError(f"{name} is a JSON {kind} over several lines, not NDJSON. {ONE_OBJECT_PER_LINE}")


def is_odd(name: str, error: SourceError, names: Sequence[str]) -> bool:
    """Return whether an error is a reason to set a file aside.

    A damaged file is not odd: some of its rows may have been loaded, and the run ends at the damage. Nor is a file that
    is being written, is gone, or the only one.
    """
    return len(names) > 1 and not isinstance(error, DamagedFile | ChangedFile) and os.path.exists(name)


def check_that_one_is_good(names: Sequence[str], look: Callable[[str], object]) -> None:
    """Raise the error of the last file if every file is odd; `look` raises what is wrong with one."""
    odd: SourceError | None = None
    for name in names if len(names) > 1 else ():
        try:
            look(name)
        except SourceError as error:
            if not is_odd(name, error, names):
                return  # reading the file reports it
            odd = error
        else:
            return
    if odd is not None:
        raise SourceError(f"none of the {len(names)} files can be read; the last one: {odd}")


class FileFitCheck:
    """Finds which of several files do not fit the validator or the sink."""

    def __init__(
        self,
        misfit: Misfit | None,
        names: Sequence[str],
        partitions: Mapping[str, Mapping[str, Any]],
        columns_of: Callable[[str], Sequence[str] | None],
    ) -> None:
        """`columns_of` reads the columns of a file: None if it has none, a SourceError where it is odd anyway."""
        self._misfit = misfit
        self._partitions = partitions
        if misfit is not None and not (len(names) > 1 and any(self._fits(name, columns_of) for name in names)):
            self._misfit = None  # there is nothing to choose from, so that the run ends with what is wrong

    def objection(self, name: str, columns: Sequence[str]) -> SourceError | None:
        """Return why a file with these columns is set aside; None if it is not."""
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
    status = os.stat(name)
    record = {
        "path": name,
        "size": status.st_size,
        "mtime": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(),
        "digest": identity.content(name, status.st_size, samples=_SAMPLES),
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
