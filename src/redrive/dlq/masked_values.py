"""Masking of values wherever a text has them: whole, cut short by a library, or reported by a database.

`mask_values` and `mask_parts` mask known values, and the beginning or the end that a library leaves of one.
`mask_reported` masks values that databases and libraries report beside their columns, in a spelling of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from redrive._internal.masking import MASK

# This many characters are recognized anywhere, and fewer beside an ellipsis.
_RECOGNIZED = 12
_BESIDE_ELLIPSIS = 4
_COMPARED = 2_000  # characters by which the value is chosen whose beginning is the longest

_ELLIPSIS = re.compile(r"\.{3,}+|…")

_Span = tuple[int, int]


def mask_values(text: str, forms: Iterable[str], *, cut: Collection[str]) -> str:
    """Return a text without values that it has whole, in one of their forms, and without what continues one.

    Args:
        cut: values of which a beginning may continue what another begins.
    """
    whole = [(start, start + len(form)) for form in forms for start in _places(text, form)]
    if not whole:
        return text
    spans = _merged([*whole, *_parts(text, cut)])
    starts = sorted(start for start, _ in whole)
    return _without(
        text, [(start, end) for start, end in spans if bisect_left(starts, start) < bisect_left(starts, end)]
    )


def mask_parts(text: str, values: Collection[str]) -> str:
    """Return a text without beginnings and ends of values, where these are long enough to be recognized."""
    return _without(text, _merged(_parts(text, values)))


def _parts(text: str, of_values: Collection[str]) -> list[_Span]:
    values = {value for value in of_values if len(value) > _BESIDE_ELLIPSIS}
    if not values:
        return []
    size, mirrored = len(text), text[::-1]
    # No more of a value can be in the text, and a value may be a file.
    forward = sorted({value[: size + 1] for value in values})
    backward = sorted({value[-size - 1 :][::-1] for value in values})
    ends = [*_beginnings(mirrored, backward), *_before_ellipses(mirrored, backward)]
    return [
        *_beginnings(text, forward),
        *_before_ellipses(text, forward),
        *((size - end, size - start) for start, end in ends),
    ]


def _places(text: str, form: str) -> Iterator[int]:
    start = text.find(form)
    while start >= 0:
        yield start
        start = text.find(form, start + len(form))


def _beginnings(text: str, values: list[str]) -> Iterator[_Span]:
    """Yield where a text has beginnings of values; the values are sorted."""
    for beginning in {value[:_RECOGNIZED] for value in values if len(value) > _RECOGNIZED}:
        start = text.find(beginning)
        while start >= 0:
            place = bisect_left(values, text[start : start + _COMPARED])
            near = values[max(0, place - 1) : place + 1]
            end = start + max(_common(text, start, value) for value in near)
            yield start, end
            start = text.find(beginning, end)


def _common(text: str, start: int, value: str) -> int:
    """Return how many characters of a value a text has from there."""
    least, step = 0, 16
    while text.startswith(value[least : least + step], start + least) and least < len(value):
        least += step
        step *= 2
    while step > 1:
        step //= 2
        if text.startswith(value[least : least + step], start + least):
            least += step
    return min(least, len(value))


def _before_ellipses(text: str, values: Collection[str]) -> Iterator[_Span]:
    """Yield where short beginnings of values stand before an ellipsis."""
    ellipses = [found.start() for found in _ELLIPSIS.finditer(text)]
    if not ellipses:
        return
    beginnings = {value[:size] for value in values for size in range(_BESIDE_ELLIPSIS, min(_RECOGNIZED, len(value)))}
    for place in ellipses:
        end = place - 1 if text[place - 1 : place] == " " else place
        for size in range(min(_RECOGNIZED - 1, end), _BESIDE_ELLIPSIS - 1, -1):
            if text[end - size : end] in beginnings:
                yield end - size, end
                break


def _merged(spans: list[_Span]) -> list[_Span]:
    """Return the spans in their order, those that overlap as one."""
    merged: list[_Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(text: str, spans: list[_Span]) -> str:
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        pieces += (text[at:start], MASK)
        at = end
    return "".join([*pieces, text[at:]])


# What begins after the values: another part of PostgreSQL's message, or of SQLAlchemy's.
_NEXT_PART = re.compile(
    r"\s(?:CONTEXT|HINT|DETAIL|QUERY|STATEMENT|LINE [0-9]{1,9}):\s|\[SQL: |\[parameters: |\(Background on this error"
)
_NAMES_IN_VALUES = re.compile(r'(?:^|, )([^:,"]{1,100}+): ')
_NAME = re.compile(r'"([^"]{1,100}+)"|([^\W\d][\w$]*+)')
_PLACE: Final = r"COPY [^\n,]{1,100}+, line [0-9]{1,20}+"

Hides = Callable[[Sequence[Sequence[str]]], bool]
"""Whether values are hidden, by the names in each of their columns; by none where the columns are not named."""


@dataclass(frozen=True, slots=True)
class _Report:
    """The positions of values in one kind of message."""

    begin: re.Pattern[str]
    end: re.Pattern[str] | None = None
    closing: str = ""
    """What closes the values where no `end` is found, at its last place before the next part of the message."""
    are_named_inside: bool = False

    def mask(self, text: str, hides: Hides) -> str:
        """Return the text without the values that are hidden."""
        pieces: list[str] = []
        at = bound = 0
        while (begin := self.begin.search(text, at)) is not None:
            start = begin.end()
            if bound < start:
                following = _NEXT_PART.search(text, start)
                bound = len(text) if following is None else following.start()
            columns = self._columns_before(text[at : begin.start()], begin)
            if columns is not None and not hides(columns):
                pieces.append(text[at:start])
                at = start
                continue
            end = None if self.end is None else self.end.search(text, start, bound)
            at_end = end.start() if end is not None else max(start, self._last_closing(text, start, bound))
            if columns is None:
                columns = self._columns_after(text[start:at_end], end)
            pieces += (text[at:start], MASK if hides(columns) else text[start:at_end])
            at = at_end
        return "".join([*pieces, text[at:]])

    def _last_closing(self, text: str, start: int, bound: int) -> int:
        place = text.rfind(self.closing, start, bound) if self.closing else -1
        return bound if place < 0 else place

    def _columns_before(self, before: str, begin: re.Match[str]) -> Sequence[Sequence[str]] | None:
        """Return the names of the columns where they stand before the values."""
        if "columns" in begin.groupdict():
            return _names(begin["columns"])
        return _names(_in_parentheses(before)) if begin[0].startswith(")") else None

    def _columns_after(self, values: str, end: re.Match[str] | None) -> Sequence[Sequence[str]]:
        if self.are_named_inside:
            return [_identifiers(name) for name in _NAMES_IN_VALUES.findall(values)]
        return _names(end["columns"]) if end is not None and "columns" in end.groupdict() else []


_REPORTS = (
    # PostgreSQL: Key (lower(email), id)=(…) already exists. In other languages, too.
    _Report(
        re.compile(r"\) ?= ?\("),
        re.compile(r"\)(?= (?:already exists|is not present|is still referenced|conflicts with|is duplicated))"),
        ")",
    ),
    _Report(re.compile(r"Failing row contains \("), closing=")"),
    _Report(re.compile(rf'{_PLACE}, column (?P<columns>[^\n:]{{1,100}}+): "'), closing='"'),
    _Report(re.compile(rf'{_PLACE}: "'), closing='"'),
    _Report(re.compile(r"JSON data, line [0-9]{1,20}+: ")),
    _Report(re.compile(r"portal (?:\"[^\"\n]{0,100}+\" )?(?:with parameters: |parameter \$[0-9]{1,9}+ = )")),
    # SQLAlchemy
    _Report(re.compile(r"\[parameters: "), closing="]"),
    # DuckDB: Duplicate key "id: 5, email: …" violates unique constraint
    _Report(
        re.compile(r'[Kk]ey "(?=[^":\n]{1,100}: )'),
        re.compile('"(?= (?:violates|does not exist|is still|already))'),
        '"',
        are_named_inside=True,
    ),
    # MySQL
    _Report(re.compile("Duplicate entry '"), re.compile(r"' for key '(?P<columns>[^'\n]{1,200}+)'"), "'"),
    _Report(
        re.compile(r"[Ii]ncorrect [a-z ]{0,30}value: '"),
        re.compile(r"' for column (?P<columns>[^\n]{1,200}?) at "),
        "'",
    ),
    # SQL Server and Oracle
    _Report(re.compile(r"The duplicate key value is \("), closing=")"),
    _Report(re.compile("Truncated value: '"), closing="'"),
    _Report(re.compile(r"row with column values \("), closing=")"),
    # MongoDB: dup key: { email: "…" }
    _Report(re.compile(r"dup key: \{ "), re.compile(r" \}(?=, full error|[\"'\s]|\Z)"), "}", are_named_inside=True),
)


def mask_reported(text: str, hides: Hides) -> str:
    """Return a message without the values that are reported of hidden columns."""
    for report in _REPORTS:
        text = report.mask(text, hides)
    return text


def _names(columns: str | None) -> Sequence[Sequence[str]]:
    """Return for each column what may be its name: of `lower(email), id` they are lower and email, and id."""
    return [] if not columns else [_identifiers(column) for column in columns.split(", ")]


def _identifiers(column: str) -> Sequence[str]:
    return [quoted or name for quoted, name in _NAME.findall(column)]


def _in_parentheses(before: str) -> str | None:
    """Return the end of a text since the parenthesis that is still open; None where there is none."""
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        if before[place] == ")":
            depth += 1
        elif before[place] == "(":
            if depth == 0:
                return before[place + 1 :]
            depth -= 1
    return None


def hides_by(named: Callable[[str], bool], shown: Iterable[str], *, unknown: bool) -> Hides:
    """Return what hides the values of columns of which one is named, or all where one is not known.

    Args:
        named: whether a field of this name is masked.
        shown: names of the fields that are not.
        unknown: whether columns of other names may hold masked values.
    """
    known = {name.casefold() for name in shown}

    def hides(columns: Sequence[Sequence[str]]) -> bool:
        if any(named(name) for column in columns for name in column):
            return True
        are_known = bool(columns) and all(any(name.casefold() in known for name in column) for column in columns)
        return unknown and not are_known

    return hides
