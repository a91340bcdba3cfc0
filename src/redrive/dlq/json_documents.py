"""JSON documents in texts: one, or several in a row as in NDJSON, in any encoding. Used by redaction."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# A byte order mark, and the record separator of JSON text sequences, may stand where blanks may.
_BLANKS = " \t\r\n\x1e\ufeff"
_BETWEEN = re.compile("[ \t\r\n\x1e\ufeff]*")
_FIRST_BYTES = (b"{", b"[", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\0")


@dataclass(frozen=True, slots=True)
class JsonDocuments:
    """The documents of a text, which are dicts and lists, and what stands before, between and after them."""

    values: list[Any]
    between: list[str]
    encoding: str | None
    """Of bytes; None for a text."""

    def text(self, values: Sequence[Any]) -> str | bytes:
        """Return the text with other values in the places of its documents."""
        if self.encoding is None:
            return self._joined(values, is_ascii=False)
        if self.encoding in {"utf-8", "utf-8-sig"}:
            return self._joined(values, is_ascii=False).encode(self.encoding, "surrogatepass")
        return self._joined(values, is_ascii=True).encode(self.encoding)

    def _joined(self, values: Sequence[Any], *, is_ascii: bool) -> str:
        parts = [self.between[0]]
        for value, after in zip(values, self.between[1:], strict=True):
            parts += (json.dumps(value, ensure_ascii=is_ascii), after)
        return "".join(parts)


def documents_of(text: str | bytes, charset: str | None = None) -> JsonDocuments | None:
    """Return the JSON documents that a text consists of; None where it has anything else in it.

    Args:
        text: the text, or its bytes in an encoding of Unicode.
        charset: the encoding of bytes that are not Unicode.
    """
    if isinstance(text, str):
        if text[1:2] != "\0" and text[:1] != "\0":
            return _parse(text, None)
        # UTF-16 or UTF-32 without a mark, which is UTF-8 as well where all of it is ASCII.
        found = documents_of(text.encode(errors="surrogatepass"))
        return None if found is None or found.encoding == "utf-8" else found
    if not text.lstrip(b" \t\r\n\x1e").startswith(_FIRST_BYTES):
        return None
    encoding = json.detect_encoding(text)
    try:
        return _parse(text.decode(encoding, "surrogatepass"), encoding)
    except (UnicodeError, LookupError):
        pass
    try:
        return None if charset is None else _parse(text.decode(charset), charset)
    except (UnicodeError, LookupError, ValueError):
        return None


def _parse(text: str, encoding: str | None) -> JsonDocuments | None:
    if text.lstrip(_BLANKS)[:1] not in ("{", "["):
        return None
    values: list[Any] = []
    between: list[str] = []
    place = 0
    while True:
        blank = _BETWEEN.match(text, place)
        assert blank is not None
        between.append(blank[0])
        place = blank.end()
        if place == len(text):
            return JsonDocuments(values, between, encoding)
        if text[place] not in "{[":
            return None
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        values.append(value)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; a name that comes twice has all its values: which of them is read is not known."""
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    every: dict[str, list[Any]] = {}
    for name, value in pairs:
        every.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in every.items()}


_DECODER = json.JSONDecoder(object_pairs_hook=_fields)
