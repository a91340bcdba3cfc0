"""Files that a command writes: whole, or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from redrive._internal.files import FILE, open_new, scratch_beside
from redrive.cli.exit_codes import CommandRefused, Unwritten


@contextmanager
def whole_file(path: Path, *, mode: int = FILE) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name when all of it is written.

    Args:
        mode: its permissions, less those that the umask takes away; of a file with records, its user's alone.
    """
    try:
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode)
        # A device or a pipe cannot be replaced, only written to.
        part = path if special else Path(scratch_beside(path))
        file = part.open("wb") if special else open(open_new(part, mode), "wb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise CommandRefused(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
            if not special:
                file.flush()
                os.fsync(file.fileno())
        if not special:
            part.replace(path)
    except BaseException as error:
        if not special:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise Unwritten(path, error, is_left=special) from None
        raise
