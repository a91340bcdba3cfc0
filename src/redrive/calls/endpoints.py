"""Endpoints that are few: the paths of requests without the ids in them, and no more names than a table can hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

MOST = 100
"""Endpoints of one service that are counted apart."""
OTHER = "other"
"""What all further ones are counted as."""
_LONGEST_PATH = 500
_LONGEST_WORD = 40

# A segment that is an id, as far as one can tell: a number, a UUID, a hash, a date, or a long name with digits in it.
_ID = re.compile(
    r"""(?ix)
    \d[\d.,:_-]*                                                 # 17, 2024-05-01, 12.5
    | \{?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\}?          # a UUID
    | (?=[a-f-]*\d)[0-9a-f-]{8,}                                 # a hash
    | \d{4}-?\d{2}-?\d{2}T[\d:.+Z-]+                             # a date and time
    | [^@]+@[^@]+                                                # an address
    """
)
# Ids that are shown in log lines. What is longer, a hash or an address may be a secret or belong to a person.
_SHOWN = re.compile(
    r"""(?ix)
    \d[\d.,:_-]*
    | [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}
    | \d{4}-?\d{2}-?\d{2}T[\d:.+Z-]+
    | (?![0-9a-f-]{8,20}$)[\w.~-]{1,20}
    """
)
_VERSION = re.compile(r"(?i)v\d{1,3}(?:\.\d+)?|\d\.\d")
_DIGITS = re.compile(r"\d")
_MIXED = 3  # digits in a word from which on it is taken for an id


@lru_cache(1_000)  # most programs send many requests to few paths
def route(path: str) -> str:
    """Return the path with `{id}` for each segment that looks like an id."""
    return "/".join(_segments(path[:_LONGEST_PATH]))


@lru_cache(1_000)
def shown_path(path: str) -> str:
    """Return the path as an operator needs it: with the ids in it, but for those that may be secrets."""
    return "/".join(_segments(path[:_LONGEST_PATH], _SHOWN))


def _segments(path: str, shown: re.Pattern[str] | None = None) -> Iterator[str]:
    for segment in path.split("/"):
        hidden = _is_id(segment) and not (shown is not None and shown.fullmatch(segment))
        yield "{id}" if hidden else segment


def _is_id(segment: str) -> bool:
    if not segment or _VERSION.fullmatch(segment):
        return False
    if _ID.fullmatch(segment) or len(segment) > _LONGEST_WORD or "%" in segment:
        return True
    digits = len(_DIGITS.findall(segment))
    if digits >= _MIXED:
        return True
    # `cus_NffrFeUfNV2Hib`: capitals in the midst of small letters, and a digit.
    return digits > 0 and len(segment) >= 8 and segment not in (segment.lower(), segment.upper())
