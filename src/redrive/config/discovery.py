"""Which `redrive.toml` holds in a directory, and whether it may be trusted.

A file can name programs to run and addresses to send secrets to. So it is read only where nobody but the user, or root,
can have written it.
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
    """The file that holds in a directory, if there is one.

    It is the one that REDRIVE_CONFIG names, else the first `redrive.toml` in the directory or its parents. The search
    ends at the home directory and at the root of a git repository. A `ConfigError` where others could have written it.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(VARIABLE, "").strip():
        file = Path(named).expanduser().absolute()
        if not file.exists():
            raise ConfigError(f"{VARIABLE} names {file}, which does not exist")
        return file
    try:
        here = Path.cwd() if directory is None else Path(directory).absolute()
    except FileNotFoundError:  # the directory was removed under us
        return None
    for place in _searched(here):
        if os.path.isfile(place / FILE):
            _check(place / FILE, environ)
            return place / FILE
    _warn_of_file_above(here)
    return None


def _searched(here: Path) -> Iterator[Path]:
    """The directories in which the file may be, from here upwards."""
    home = _home()
    for place in (here, *here.parents):
        yield place
        # os.path.exists says no where a parent may not be looked into; pathlib would raise.
        if place == home or os.path.exists(place / ".git"):
            return


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


@cache  # once for each directory: a command looks for its file more than once
def _warn_of_file_above(here: Path) -> None:
    """Say that a file is not used that was used before the search had an end."""
    *_, last = _searched(here)
    for place in last.parents:
        if os.path.isfile(place / FILE):
            _LOG.warning("%s is not used: the search ends at %s. Set %s to use it", place / FILE, last, VARIABLE)
            return


def _check(file: Path, environ: Mapping[str, str]) -> None:
    if not hasattr(os, "geteuid"):
        return  # on Windows, permissions are of another kind
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and environ.get("SUDO_UID", "").isdigit():
        trusted.add(int(environ["SUDO_UID"]))
    for place, found in _places(file):
        if found.st_uid not in trusted:
            why = f"belongs to {_user(found.st_uid)}"
        elif found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode) and not _keeps_files(found):
            why = "can be written by every user"
        else:
            continue
        raise ConfigError(
            f"{file} is not read, because {place} {why}: it could run programs in your name. "
            f"Change its owner or mode, or set {VARIABLE}={file} if you trust it ({VARIABLE}=/dev/null for no file)"
        )


def _places(file: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The file and its directory; of a link, every file and directory on the way. Each of them may be anybody's."""
    yield file, file.lstat()
    yield file.parent, file.parent.stat()
    if file.is_symlink():
        yield from _places(file.parent / os.readlink(file))


def _keeps_files(found: os.stat_result) -> bool:
    """Whether it is a directory in which only the owner of a file can replace it, as in /tmp."""
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)


def _user(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"
