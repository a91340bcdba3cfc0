"""What an error of a task is known by: its cause, one line of text, and its traceback, bounded and without secrets."""

from __future__ import annotations

import traceback
from pathlib import PurePath
from types import TracebackType

from redrive.masking import mask

ERROR_LENGTH = 2_000
TRACE_LENGTH = 16 << 10
_FRAMES = 100
_LOOK_AT = 10 * ERROR_LENGTH  # masking sees more than is shown, so that a secret at the cut is not missed


def fingerprint(error: BaseException, *, skip: str | None = None) -> str:
    """The type and the innermost frame: two errors that have both in common have one cause, whatever they say.

    `skip` is a file whose frames do not count: the one that called the task.
    """
    place = _innermost(error.__traceback__, skip)
    return f"{type_name(type(error))}@{place}" if place else type_name(type(error))


def type_name(kind: type) -> str:
    """`ValueError`, `decimal.InvalidOperation`."""
    module = kind.__module__
    if module == "builtins":
        return kind.__qualname__
    return kind.__qualname__ if module in ("__main__", "__mp_main__") else f"{module}.{kind.__qualname__}"


def _innermost(trace: TracebackType | None, skip: str | None) -> str | None:
    """`jobs.settlement:42`: by the module, which is the same on every machine; a program has but its file's name."""
    innermost = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != skip:
            innermost = trace
        trace = trace.tb_next
    if innermost is None:
        return None
    frame = innermost.tb_frame
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str) or module in ("__main__", "__mp_main__"):
        module = PurePath(frame.f_code.co_filename).stem
    return f"{module}:{innermost.tb_lineno}"


def one_line(error: BaseException) -> str:
    """`ValueError: could not convert string to float: 'N/A'`."""
    try:
        said = str(error)
    except Exception:
        said = ""
    name = type(error).__name__
    said = " ".join(mask(said[:_LOOK_AT]).split())
    return storable(cut(f"{name}: {said}" if said else name, ERROR_LENGTH))


def trace_of(error: BaseException, *, skip: str | None = None) -> str:
    """The traceback as Python prints it; the innermost frames where there are too many."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == skip and trace.tb_next is not None:
        trace = trace.tb_next
    text = mask("".join(traceback.format_exception(type(error), error, trace, limit=-_FRAMES))[-4 * TRACE_LENGTH :])
    left_out = len(text) - TRACE_LENGTH
    if left_out > 0:
        text = f"… {left_out:,} characters left out …\n{text[left_out:]}"
    return storable(text)


def cut(text: str, length: int) -> str:
    """No more than so many characters of it."""
    return text if len(text) <= length else text[: length - 1] + "…"


def storable(text: str) -> str:
    """Without what JSON and databases cannot hold: NUL, and halves of characters."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()
