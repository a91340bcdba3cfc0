"""The text of an SQL query, as it is compared with another one."""

from __future__ import annotations

import re

# What is kept as it is: quoted text, and comments, behind which a line end matters.
_KEPT = r"""'[^']*'?|"[^"]*"?|`[^`]*`?|(?:--|\#)[^\n]*\n?|/\*(?:[^*]|\*(?!/))*"""
_PIECE = re.compile(rf"({_KEPT})|\s+")


def normalized(sql: str) -> str:
    """Return the same text for queries that differ only in the space between their words."""
    return _PIECE.sub(lambda piece: piece[1] or " ", sql.strip(" \t\r\n;"))
