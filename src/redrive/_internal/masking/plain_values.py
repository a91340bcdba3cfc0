"""Values that are no secrets, though they stand under the name of one: `key=7/part-1.parquet`, `password=?`."""

from __future__ import annotations

import re
from typing import Final

from redrive._internal.masking.names import SECRET_FIELD

_NOTHING: Final = frozenset({"true", "false", "none", "null"})
_PLACEHOLDER: Final = re.compile(
    r"(?:\?|%s|%\(\w{1,100}\)s|\$[0-9]{1,4}|[:@](?P<name>\w{1,100}?)(?:_[0-9]{1,6})?)[)\]]{0,9}"
)

# `key` names the column of a partition, `…/key=7/part-0001.parquet`, and an object, `Key=in/2026/a.csv`.
_OBJECT: Final = re.compile(
    r"[0-9]{1,5}(?:[/\\].*)?|[\w.=-]{1,100}(?:[/\\][\w.=-]{1,100}){1,30}\.[a-z][a-z0-9]{1,9}[.:)\]]{0,3}"
)

_WORKING_DIRECTORY: Final = frozenset({"PWD", "OLDPWD"})
_PATH: Final = re.compile(r"/(?:app|data|etc|home|mnt|opt|root|run|srv|tmp|usr|var|work|workspace|Users)(?:/[\w./-]*)?")

_LONGEST: Final = 500  # characters of a value that may be plain


def is_plain_value(name: str, value: str) -> bool:
    """Return whether the value of `name=value` shows nothing."""
    if len(value) > _LONGEST:
        return False
    if value.lower() in _NOTHING:
        return True
    if placeholder := _PLACEHOLDER.fullmatch(value):
        of = placeholder["name"]
        return of is None or of == name or SECRET_FIELD.fullmatch(of) is not None
    if name in _WORKING_DIRECTORY:
        return _PATH.fullmatch(value) is not None
    return name.lower() == "key" and _OBJECT.fullmatch(value) is not None
