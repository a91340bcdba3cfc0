"""On which line each key of a TOML document stands: `tomllib` gives values without it.

The text is known to be valid, since `tomllib` has read it; so this looks for names, and steps over values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Key = tuple[str | int, ...]
"""The way to a value: names of tables and keys, and the places in lists, from 0."""

_TOKEN = re.compile(
    r'''(?P<blank>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>"""(?:\\.|[^"\\]|"(?!""))*"{3,5}|\'\'\'(?:[^']|'(?!\'\'))*'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    |(?P<mark>[\[\]{},=.])
    |(?P<word>[^\s\[\]{},=.\#"']+)''',
    re.DOTALL | re.VERBOSE,
)


def lines(text: str) -> dict[Key, int]:
    """The line, from 1, of every key, every table and every entry of a list.

    A table stands where its header is, or else where it is first spoken of.
    """
    scan = _Scan()
    line = 1
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "newline":
            scan.end_of_line()
        elif token.lastgroup != "blank":
            scan.take(token[0], line)
        line += token[0].count("\n")
    return scan.found


class _OpenContainer(NamedTuple):
    """A list or an inline table that is open."""

    key: Key
    is_list: bool


class _Scan:
    """Goes through a document piece by piece. A stack in place of recursion: a list may be nested deeply."""

    def __init__(self) -> None:
        self.found: dict[Key, int] = {}
        self._table: Key = ()  # that of the last header
        self._sizes: dict[Key, int] = {}  # of arrays of tables, and of lists that are open
        self._brackets = 0  # of the header that is being read
        self._names: list[str] = []  # of the key or the header that is being read
        self._key: Key = ()  # whose value is being read
        self._in_value = False
        self._open: list[_OpenContainer] = []

    def end_of_line(self) -> None:
        """Ends a statement, unless it is within a list or an inline table."""
        if not self._open:
            self._names, self._brackets, self._in_value = [], 0, False

    def take(self, piece: str, line: int) -> None:
        """A name, a value, a part of one, or a mark between them."""
        if self._in_value:
            self._take_of_value(piece, line)
        elif piece == "=":
            self._key = self._note(self._open[-1].key if self._open else self._table, line)
            self._in_value = True
        elif piece == "[":
            self._brackets += 1
        elif piece == "]":
            self._begin_table(line)
        elif piece == "}":
            self._close()
        elif piece not in {".", ","}:
            self._names.append(_name(piece))

    def _take_of_value(self, piece: str, line: int) -> None:
        around = self._open[-1] if self._open else None
        if piece == ",":
            if around is not None and around.is_list:
                self._sizes[around.key] += 1
            else:
                self._in_value = False
        elif piece in {"]", "}"}:
            self._close()
        else:
            key = (*around.key, self._sizes[around.key]) if around is not None and around.is_list else self._key
            self.found.setdefault(key, line)
            if piece == "[":
                self._sizes[key] = 0
                self._open.append(_OpenContainer(key, is_list=True))
            elif piece == "{":
                self._open.append(_OpenContainer(key, is_list=False))
                self._in_value = False

    def _close(self) -> None:
        self._open.pop()
        self._names, self._in_value = [], True  # what comes is a comma, the end of what is around, or of the line

    def _note(self, key: Key, line: int) -> Key:
        """Put the names that were read behind a key."""
        for name in self._names:
            key = (*key, name)
            self.found.setdefault(key, line)
        self._names = []
        return key

    def _begin_table(self, line: int) -> None:
        if not self._names:  # the second bracket of [[this]]
            return
        *before, last = self._names
        key: Key = ()
        for name in before:
            key = (*key, name)
            self.found.setdefault(key, line)
            if key in self._sizes:  # of an array of tables, the last one is meant
                key = (*key, self._sizes[key] - 1)
        key = (*key, last)
        if self._brackets == 1:
            self.found[key] = line
        else:
            self.found.setdefault(key, line)
            self._sizes[key] = self._sizes.get(key, 0) + 1
            key = (*key, self._sizes[key] - 1)
            self.found[key] = line
        self._names, self._table = [], key


def _name(piece: str) -> str:
    if piece[0] not in "\"'":
        return piece
    import tomllib

    name: str = tomllib.loads(f"name = {piece}")["name"]
    return name
