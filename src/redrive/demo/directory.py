"""The directory in which the demo runs: created, recognized and cleared; other directories are never changed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

from redrive._internal.files import make_directory, open_new
from redrive.demo import world
from redrive.errors import RedriveError

NAME = "redrive-demo"
MARKER = ".redrive-demo"
PROGRAMS = ("partner.py", "vendor.py", "settlement.py", "redrive.toml")
DELIVERIES, ACCOUNTS, LOG = "deliveries.csv", "accounts.json", "redrive.log"
_MADE = (
    *PROGRAMS,
    *(DELIVERIES, ACCOUNTS, LOG, f"payouts-{world.DAY}.csv"),
    *("warehouse.duckdb", "warehouse.duckdb.wal", "pager.txt", "team.txt", ".redrive", "__pycache__"),
)


class DemoDirectoryError(RedriveError):
    """The demo cannot run in the directory."""


@contextmanager
def set_up(directory: Path, *, rows: int) -> Iterator[None]:
    """Create the directory, with its programs and their files, and lock it against other demos."""
    with ExitStack() as stack:
        try:
            _claim(directory)
            stack.enter_context(_lock(directory))
            _clear(directory)
            _write_files(directory, rows)
        except OSError as error:
            where, why = error.filename or directory, error.strerror
            raise DemoDirectoryError(
                f"{where} cannot be written: {why}; name another place with --directory"
            ) from error
        yield


def _claim(directory: Path) -> None:
    if not _is_free(directory):
        raise DemoDirectoryError(
            f"{directory} was not made by a demo, and is left alone; name another place with --directory"
        )
    make_directory(directory)
    (directory / MARKER).touch()


def _is_free(directory: Path) -> bool:
    if not directory.is_dir():
        return not os.path.lexists(directory)
    return (directory / MARKER).is_file() or not any(directory.iterdir())


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    with (directory / MARKER).open("r+") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoDirectoryError(
                f"a demo is under way in {directory}; name another place with --directory"
            ) from None
        yield


def _clear(directory: Path) -> None:
    """Remove what an earlier demo has created, and no other file."""
    for name in _MADE:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write_files(directory: Path, rows: int) -> None:
    programs = files("redrive.demo") / "programs"
    for name in PROGRAMS:
        # Settings that other users can write to would be rejected, whatever the umask.
        with open(open_new(directory / name), "w", encoding="utf-8") as file:
            file.write((programs / name).read_text(encoding="utf-8"))
    world.write_vendor_file(directory / DELIVERIES, rows)
    world.write_payouts(directory / f"payouts-{world.DAY}.csv")
    world.write_accounts(directory / ACCOUNTS)
