"""On which line each key of a TOML document stands, for the messages of `Located`: `tomllib` does not report it.

The text is known to be valid, since `tomllib` has read it; so this looks for names, and steps over values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Key = tuple[str | int, ...]
"""The path to a value: names of tables and keys, and the positions in lists, from 0."""

_TOKEN = re.compile(
    r'''(?P<blank>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>"""(?:\\.|[^"\\]|"(?!""))*"{3,5}|\'\'\'(?:[^']|'(?!\'\'))*'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    |(?P<mark>[\[\]{},=.])
    |(?P<word>[^\s\[\]{},=.\#"']+)''',
    re.DOTALL | re.VERBOSE,
)


def lines(text: str) -> dict[Key, int]:
    """Return the line, from 1, of every key, every table and every entry of a list.

    A table has the line of its header, or else of its first mention.
    """
    scan = _Scan()
    line = 1
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "newline":
            scan.end_of_line()
        elif token.lastgroup != "blank":
            scan.take(token[0], line)
        line += token[0].count("\n")
    return scan.line_of


class _OpenContainer(NamedTuple):
    """A list or an inline table that is open."""

    key: Key
    is_list: bool


class _Scan:
    """Reads a document token by token. It has a stack in place of recursion, since a list may be nested deeply."""

    def __init__(self) -> None:
        self.line_of: dict[Key, int] = {}
        self._table: Key = ()  # that of the last header
        self._sizes: dict[Key, int] = {}  # of arrays of tables, and of lists that are open
        self._brackets = 0  # of the header that is being read
        self._names: list[str] = []  # of the key or the header that is being read
        self._key: Key = ()  # whose value is being read
        self._in_value = False
        self._open: list[_OpenContainer] = []

    def end_of_line(self) -> None:
        """End a statement, unless it is within a list or an inline table."""
        if not self._open:
            self._names, self._brackets, self._in_value = [], 0, False

    def take(self, piece: str, line: int) -> None:
        """Take a name, a value, a part of one, or a mark between them."""
        if self._in_value:
            self._take_in_value(piece, line)
        elif piece == "=":
            self._key = self._append_names(self._open[-1].key if self._open else self._table, line)
            self._in_value = True
        elif piece == "[":
            self._brackets += 1
        elif piece == "]":
            self._begin_table(line)
        elif piece == "}":
            self._close()
        elif piece not in {".", ","}:
            self._names.append(_name(piece))

    def _take_in_value(self, piece: str, line: int) -> None:
        container = self._open[-1] if self._open else None
        if piece == ",":
            if container is not None and container.is_list:
                self._sizes[container.key] += 1
            else:
                self._in_value = False
        elif piece in {"]", "}"}:
            self._close()
        else:
            key = self._key
            if container is not None and container.is_list:
                key = (*container.key, self._sizes[container.key])
            self.line_of.setdefault(key, line)
            if piece == "[":
                self._sizes[key] = 0
                self._open.append(_OpenContainer(key, is_list=True))
            elif piece == "{":
                self._open.append(_OpenContainer(key, is_list=False))
                self._in_value = False

    def _close(self) -> None:
        self._open.pop()
        # What follows is a comma, the end of the outer container, or the end of the line.
        self._names, self._in_value = [], True

    def _append_names(self, key: Key, line: int) -> Key:
        """Append the names that were read to a key, and return it."""
        for name in self._names:
            key = (*key, name)
            self.line_of.setdefault(key, line)
        self._names = []
        return key

    def _begin_table(self, line: int) -> None:
        if not self._names:  # the second bracket of [[array]]
            return
        *before, last = self._names
        key: Key = ()
        for name in before:
            key = (*key, name)
            self.line_of.setdefault(key, line)
            if key in self._sizes:  # of an array of tables, the last table is extended
                key = (*key, self._sizes[key] - 1)
        key = (*key, last)
        if self._brackets == 1:
            self.line_of[key] = line
        else:
            self.line_of.setdefault(key, line)
            self._sizes[key] = self._sizes.get(key, 0) + 1
            key = (*key, self._sizes[key] - 1)
            self.line_of[key] = line
        self._names, self._table = [], key


def _name(piece: str) -> str:
    if piece[0] not in "\"'":
        return piece
    import tomllib

    name: str = tomllib.loads(f"name = {piece}")["name"]
    return name
