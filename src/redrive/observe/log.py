"""Handlers that write the attempt log and the execution log as JSON, one object per line."""

from __future__ import annotations

import json
import logging
import math
import os
from datetime import UTC, datetime
from typing import Any

from redrive._internal.files import open_to_append
from redrive._internal.masked_errors import secrets_of, without
from redrive._internal.masking import mask, mask_all

# Attributes that every record has; all others were passed as `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record, with everything passed as `extra`, as one line of JSON; secrets are masked."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": mask(record.getMessage()),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _OWN and name not in line}
        line.update(mask_all(_jsonable(extra)))
        if record.exc_info:
            error = record.exc_info[1]
            line["traceback"] = without(
                mask(self.formatException(record.exc_info)), () if error is None else secrets_of(error)
            )
        return json.dumps(line, ensure_ascii=False)


class LogFile(logging.Handler):
    """Appends each record to a file, as one line in a single write: several processes may share the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.path.abspath(path)
        self._open()
        self.setFormatter(JsonFormatter())

    def _open(self) -> None:
        self._file = open_to_append(self._path)
        status = os.fstat(self._file)
        self._identity = status.st_dev, status.st_ino

    def _reopen_if_rotated(self) -> None:
        """Open the file again where logrotate has renamed or removed it."""
        try:
            status = os.stat(self._path)
            identity: tuple[int, int] | None = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            identity = None
        if identity != self._identity and self._file >= 0:
            os.close(self._file)
            self._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            self._reopen_if_rotated()
            os.write(self._file, f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        super().close()


def attempt_log(path: str | os.PathLike[str]) -> logging.Handler:
    """Return a handler for the logger `redrive.attempts` that appends every attempt to a file, as a line of JSON."""
    return LogFile(path)


def execution_log(path: str | os.PathLike[str]) -> logging.Handler:
    """Return a handler for the logger `redrive.events` that appends the execution log to a file, as lines of JSON."""
    return LogFile(path)


def _jsonable(value: Any) -> Any:
    """Return the value as JSON can hold it, with secrets masked."""
    if isinstance(value, dict):
        return {str(name): _jsonable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int) else mask(str(value))
