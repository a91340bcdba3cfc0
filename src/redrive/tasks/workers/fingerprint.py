"""The fingerprint, the one-line text and the traceback of a task's error, bounded and masked. Used by workers."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from types import TracebackType

import redrive
from redrive._internal.masked_errors import secrets_of, without
from redrive._internal.masking import mask_end, mask_start
from redrive.classify.detail import server_detail

ERROR_LENGTH = 2_000
TRACE_LENGTH = 16 << 10
_FRAMES = 100
_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARIES = (
    "<frozen ",
    f"{Path(redrive.__file__).parent}{os.sep}",
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")),
)
_LOOK_AT = 10 * ERROR_LENGTH  # masking reads more than is shown, so that a secret at the cut is masked, too


def fingerprint(error: BaseException, *, skip: str | None = None, home: str | None = None) -> str:
    """Return the type and the innermost frame of the user's own code: two errors that share both have one cause.

    The line of a library would give all errors of that library one cause. It counts where no frame is the user's.

    skip  a file whose frames do not count: the one that called the task
    home  the module of the task: its package is the user's own, also where it is installed
    """
    place = _innermost(error.__traceback__, skip, (home or "").partition(".")[0])
    return f"{type_name(type(error))}@{place}" if place else type_name(type(error))


def with_status(cause: str, status: int | None) -> str:
    """Add the status of a response: a client raises one class, on one line, for all of them."""
    kind, at, place = cause.partition("@")
    return cause if status is None else f"{kind}({status}){at}{place}"


def type_name(kind: type) -> str:
    """`ValueError`, `decimal.InvalidOperation`."""
    module = kind.__module__
    if module == "builtins":
        return kind.__qualname__
    return kind.__qualname__ if module in ("__main__", "__mp_main__") else f"{module}.{kind.__qualname__}"


def _innermost(trace: TracebackType | None, skip: str | None, home: str) -> str | None:
    """`jobs.settlement:42`: by the module, which is the same on every machine; a program has but its file's name."""
    innermost = own = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != skip:
            innermost = trace
            module = trace.tb_frame.f_globals.get("__name__")
            at_home = home and isinstance(module, str) and module.partition(".")[0] == home
            # Code that is generated, such as that of dataclasses, has no file: its module shows whose it is.
            is_ours = isinstance(module, str) and module.partition(".")[0] == "redrive"
            if at_home or not (is_ours or _is_of_a_library(file)):
                own = trace
        trace = trace.tb_next
    innermost = own or innermost
    if innermost is None:
        return None
    frame = innermost.tb_frame
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str) or module in ("__main__", "__mp_main__"):
        module = PurePath(frame.f_code.co_filename).stem
    return f"{module}:{innermost.tb_lineno}"


@lru_cache(maxsize=4_096)
def _is_of_a_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or not _INSTALLED.isdisjoint(PurePath(file).parts)


def one_line(error: BaseException, secrets: Sequence[str] | None = None) -> str:
    """`ValueError: could not convert string to float: 'N/A'`, without the secrets of the error."""
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    message = masked_line(message, secrets_of(error) if secrets is None else secrets)
    detail = server_detail(error)
    if detail is not None and detail not in message:
        message = f"{message} ({detail})"
    return storable(cut(f"{name}: {message}" if message else name, ERROR_LENGTH))


def masked_line(text: str, secrets: Sequence[str] = (), *, length: int = ERROR_LENGTH) -> str:
    """Return a text on one line, masked before it is cut; also without these values."""
    line = " ".join(without(mask_start(text, _LOOK_AT), secrets).split())
    return storable(cut(line, length))


def trace_of(error: BaseException, secrets: Sequence[str] | None = None, *, skip: str | None = None) -> str:
    """Return the traceback as Python prints it, masked; if it is too long, only the innermost frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == skip and trace.tb_next is not None:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace, limit=-_FRAMES))
    text = without(mask_end(text, 4 * TRACE_LENGTH), secrets_of(error) if secrets is None else secrets)
    left_out = len(text) - TRACE_LENGTH
    if left_out > 0:
        text = f"… {left_out:,} characters left out …\n{text[left_out:]}"
    return storable(text)


def cut(text: str, length: int) -> str:
    """Cut text to a maximum number of characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def storable(text: str) -> str:
    """Remove what JSON and databases cannot store: NUL and lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()
