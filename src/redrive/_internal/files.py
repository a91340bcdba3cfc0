"""Files of this machine: paths, as opposed to URLs, and files and directories that only their user can read.

Private files contain records, results and texts of errors.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from pathlib import Path

FILE, DIRECTORY = 0o600, 0o700
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory and its parents, each readable by its user alone; what is there stays as it is."""
    path = Path(path)
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    try:
        path.mkdir(mode=DIRECTORY)
    except FileExistsError:  # another process was first
        if not path.is_dir():
            raise


def scratch_beside(path: str | os.PathLike[str]) -> str:
    """Return a name beside a file, for what is renamed to it once it is complete. It cannot be guessed."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{secrets.token_hex(6)}.part")


def open_new(path: str | os.PathLike[str], mode: int = FILE) -> int:
    """Open a file that is not there yet, for writing; a file or a link of that name is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | os.O_CLOEXEC, mode)


def open_to_append(path: str | os.PathLike[str]) -> int:
    """Open a file to append to, which is made where there is none; a link that another user has put there is an error.

    A link of the user or of root is followed: a log may lie elsewhere, and /dev/stdout is one.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags | _NO_LINK, FILE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    refuse_link_of_another(path)
    return os.open(path, flags, FILE)


def refuse_link_of_another(path: str | os.PathLike[str]) -> None:
    """Raise PermissionError for a link of neither the user nor root: it may lead to a file of the user."""
    owner = os.lstat(path).st_uid
    if owner not in (0, os.geteuid()):
        raise PermissionError(
            errno.EPERM, f"it is a link of another user (uid {owner}). Remove it, or name another file", os.fspath(path)
        )


def tighten(path: Path) -> tuple[int, int] | None:
    """Remove the rights of others on a file or a directory; return its mode before and after, None if unchanged.

    Where its group may write, it is shared on purpose, and the group keeps its rights.
    """
    try:
        found = path.lstat()
    except OSError:
        return None
    if not hasattr(os, "geteuid") or found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode):
        return None
    before = stat.S_IMODE(found.st_mode)
    after = before & (~0o007 if before & stat.S_IWGRP else ~0o077)
    if before == after:
        return None
    path.chmod(after)
    return before, after


# One slash is enough: pathlib makes "s3:/bucket" of "s3://bucket". A single letter is a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(path: str | os.PathLike[str], what: str) -> str:
    """Return the path as text; raises ValueError where it has a scheme, without showing what may be a secret.

    what  what the path is for, as the start of a sentence: "the files of a source"
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a path as text or a pathlib.Path, not {type(text).__name__}")
    if found := _SCHEME.match(text):
        raise ValueError(
            f"{what} must be on this machine, not at {found[1]}://…: object stores and other URLs are not supported; "
            f"give a local path, and copy from or to {found[1]}:// outside of redrive"
        )
    return text
