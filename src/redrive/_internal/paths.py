"""Paths of this machine, told from URLs: `Path("s3://bucket/x")` would be a directory called `s3:`."""

from __future__ import annotations

import os
import re

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
