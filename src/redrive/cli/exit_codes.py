"""Errors as one line and an exit code of sysexits.h."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

from redrive.config import ConfigError
from redrive.errors import (
    FlowStopped,
    GateAborted,
    LetterError,
    PipelineError,
    RedriveError,
    ReplayStopped,
    RunStopped,
    SchemaMismatch,
    SinkMismatch,
    SourceError,
    StoreError,
    UnknownStore,
)
from redrive.model.calls import Failure, Kind

DONE = 0
USAGE = 64
BAD_DATA = 65
UNAVAILABLE = 69
FAILED = 70
TEMPORARY = 75
NO_PERMISSION = 77
INTERRUPTED = 130
BROKEN_PIPE = 141

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_MAKE_ROOM = "Free space or write to another place, and run the command again"

_HEALS = {Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.RETRY_NOW}
_CREDENTIALS = {Kind.AUTH, Kind.QUOTA}


class TargetNotFound(RedriveError):
    """A file, module or name does not exist."""


class BrokenModule(RedriveError):
    """A user module raised while it was imported."""


class UserCodeExited(RedriveError):
    """User code ended the program in the middle of a command."""

    def __init__(self, ended: SystemExit) -> None:
        code = "" if ended.code is None else repr(ended.code)
        super().__init__(
            f"the command is incomplete: your code called sys.exit({code}). What was written is kept; the same command "
            "resumes. Return from the code, or raise an exception instead"
        )


class CommandRefused(RedriveError):
    """The command cannot be executed as it was typed."""


class CommandIncomplete(RedriveError):
    """The command did part of its work and should be run again."""


class Unwritten(RedriveError):
    """A file could not be written completely."""

    def __init__(self, path: Path, error: OSError, *, is_left: bool = False) -> None:
        what_to_do = f". {_MAKE_ROOM}" if error.errno in _FULL else ""
        left = "" if is_left else ". No file was written, and an existing one is unchanged"
        super().__init__(f"cannot write {path}: {(error.strerror or str(error)).lower()}{left}{what_to_do}")


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, BrokenModule | SchemaMismatch | SourceError | SinkMismatch):
        return FAILED
    if isinstance(error, LetterError | ConfigError | UnknownStore | TargetNotFound | CommandRefused | PipelineError):
        return USAGE
    if isinstance(error, CommandIncomplete):
        return TEMPORARY
    if isinstance(error, GateAborted):
        return BAD_DATA
    if isinstance(error, StoreError | ReplayStopped | RunStopped | FlowStopped):
        return UNAVAILABLE if _is_down(error) else of_kind(error.kind)
    return FAILED


def of_kind(kind: Kind) -> int:
    """Return the exit code of a verdict."""
    return TEMPORARY if kind in _HEALS else NO_PERMISSION if kind in _CREDENTIALS else FAILED


def sentence(error: BaseException) -> str:
    """Return the message of an error; an unexpected one is marked as internal."""
    from redrive._internal.masking import mask

    if isinstance(error, RedriveError) or (isinstance(error, ImportError) and "redrive[" in str(error)):
        return mask(str(error))
    lines = mask(str(error)).strip().splitlines()
    name = type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        return mask(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in _FULL and error.strerror is not None:
        return f"cannot write the output: {error.strerror.lower()}. {_MAKE_ROOM}"
    return f"internal error: {name}{': ' + lines[0] if lines else ''} (run with --debug to see where)"


def on_broken_pipe() -> int:
    """Return the exit code after the reader of a pipe has closed it."""
    _drop_output()
    return BROKEN_PIPE


def drop_unwritable_output() -> None:
    """Discard buffered output that stdout cannot write."""
    if not hasattr(sys.stdout, "flush"):  # it was closed before the program began
        return
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    # Python would complain once more when it flushes stdout at its end, and exit with a code of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_down(error: StoreError | ReplayStopped | RunStopped | FlowStopped) -> bool:
    """Return whether a service or a server could not be reached at all, which is more than busy."""
    cause: Any = error.__cause__
    while error.kind is Kind.TRANSIENT and cause is not None:
        if isinstance(getattr(cause, "redrive", None), Failure):  # a service has tried for as long as it may
            return True
        original: Any = getattr(cause, "orig", cause)
        if hasattr(original, "sqlstate"):  # SQLite has no server, and none of these
            state: str | None = original.sqlstate
            return state is None or state.startswith("08")
        cause = cause.__cause__
    return False
