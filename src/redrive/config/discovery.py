"""Which `redrive.toml` applies to a directory, and whether it can be trusted.

A file can name programs to run and addresses to send secrets to. So it is read only where no other user than the owner
of the process, or root, can have written it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from redrive.config.located import ConfigError

FILE = "redrive.toml"
VARIABLE = "REDRIVE_CONFIG"
_LOG = logging.getLogger("redrive.config")


def find(directory: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that applies to a directory; None if there is none.

    It is the one that REDRIVE_CONFIG names, else the first `redrive.toml` in the directory or its parents. The search
    ends at the home directory and at the root of a git repository.

    Raises:
        ConfigError: REDRIVE_CONFIG names no file, or other users could have written the file.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(VARIABLE, "").strip():
        file = Path(named).expanduser().absolute()
        if not file.exists():
            raise ConfigError(f"{VARIABLE} names {file}, which does not exist")
        return file
    try:
        here = Path.cwd() if directory is None else Path(directory).absolute()
    except FileNotFoundError:  # the working directory was removed
        return None
    for path in _search_path(here):
        if os.path.isfile(path / FILE):
            _check(path / FILE, environ)
            return path / FILE
    _warn_of_file_above(here)
    return None


def _search_path(here: Path) -> Iterator[Path]:
    """Yield the directories in which the file may be, upwards from `here`."""
    home = _home()
    for path in (here, *here.parents):
        yield path
        # os.path.exists is false where a parent is not readable; pathlib would raise.
        if path == home or os.path.exists(path / ".git"):
            return


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


@cache  # once for each directory: a command looks for its file more than once
def _warn_of_file_above(here: Path) -> None:
    """Warn of a file in a directory above the search, which earlier versions used."""
    *_, last = _search_path(here)
    for path in last.parents:
        if os.path.isfile(path / FILE):
            _LOG.warning("%s is not used: the search ends at %s. Set %s to use it", path / FILE, last, VARIABLE)
            return


def _check(file: Path, environ: Mapping[str, str]) -> None:
    if not hasattr(os, "geteuid"):
        return  # on Windows, permissions are of another kind
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and environ.get("SUDO_UID", "").isdigit():
        trusted.add(int(environ["SUDO_UID"]))
    for path, status in _paths_to_check(file):
        if status.st_uid not in trusted:
            why = f"belongs to {_describe_user(status.st_uid)}"
        elif status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode) and not _is_sticky_directory(status):
            why = "can be written by every user"
        else:
            continue
        raise ConfigError(
            f"{file} is not read, because {path} {why}: it could run programs in your name. "
            f"Change its owner or mode, or set {VARIABLE}={file} if you trust it ({VARIABLE}=/dev/null for no file)"
        )


def _paths_to_check(file: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the file and its directory; of a link, every file and directory on the way: another user may own each."""
    yield file, file.lstat()
    yield file.parent, file.parent.stat()
    if file.is_symlink():
        yield from _paths_to_check(file.parent / os.readlink(file))


def _is_sticky_directory(status: os.stat_result) -> bool:
    """Return whether it is a directory in which only the owner of a file can replace it, as /tmp."""
    return stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)


def _describe_user(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"
