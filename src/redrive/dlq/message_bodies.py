"""Bodies of requests as fields: forms, JSON documents, and the parts of multipart bodies. Used by redaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from itertools import pairwise
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from redrive._internal.masking import MASK

# A field begins the text, or follows the mark of a query string or another field.
_FIELD = re.compile(r"(?P<before>(?:^|[?&;])\s*)(?P<name>[^=&?;#\s]+)=(?P<value>[^&#\s]*)")
# Header lines are few and short; the limits keep the search linear.
_PART = re.compile(
    r"(?P<head>^content-disposition:[ \t]{0,8}form-data;"
    r"[^\r\n]{0,200}?\bname=\"(?P<name>[^\"\r\n]{0,200})\"[^\r\n]{0,400}"
    r"(?:\r?\n[^\r\n]{1,400}){0,8}\r?\n\r?\n)(?P<value>.*?)(?=\r?\n--|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
_FILE_NAME = re.compile(
    r"(?P<before>\bfilename(?:\*[0-9]{0,3})?\*?=)(?:\"(?P<quoted>(?:[^\"\\\r\n]|\\.){0,400})\"|(?P<plain>[^;\"\s]{1,400}))",
    re.IGNORECASE,
)
_PLAIN_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}")
_NOT_IN_FORM = re.compile(r"[\s#<>]")
_NOT_IN_NAME = re.compile(r"[?;{}\"]")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")

Mask = Callable[[str, str], str]
"""Given the dotted path of a field and its value, returns the value as it may be shown."""


def mask_form(text: str, mask: Mask) -> str:
    """Return a text with the values of its form fields masked; what is not of a form stays as it is."""
    if "=" not in text:
        return text
    if "form-data;" in text:
        return _PART.sub(lambda part: _mask_part(part, mask), text)

    def field(match: re.Match[str]) -> str:
        value = unquote_plus(match["value"], errors="surrogateescape")
        shown = mask(field_path(unquote_plus(match["name"])), value)
        if shown == value:
            return match[0]
        return f"{match['before']}{match['name']}={quote_plus(shown, safe='*', errors='surrogateescape')}"

    return _FIELD.sub(field, text)


def _mask_part(part: re.Match[str], mask: Mask) -> str:
    path = field_path(part["name"])

    def file_name(found: re.Match[str]) -> str:
        name = found["plain"] if found["quoted"] is None else found["quoted"]
        shown = mask(path, name)
        return found[0] if shown == name else f'{found["before"]}"{shown}"'

    return _FILE_NAME.sub(file_name, part["head"]) + mask(path, part["value"])


def is_form(text: str, content_type: str | None) -> bool:
    """Return whether all of a body is a URL-encoded form, in which blanks are encoded.

    A body that is not declared as a form has no empty values: base64 ends as if it had.
    """
    text = text.strip()
    if _NOT_IN_FORM.search(text):
        return False
    fields = [field.partition("=") for field in text.split("&")]
    if (content_type or "").lower().lstrip().startswith("application/x-www-form-urlencoded"):
        return not any('"' in name for name, _, _ in fields)
    return all(name and not _NOT_IN_NAME.search(name) and value[:1] not in ("", "=", ";") for name, _, value in fields)


def field_path(name: str) -> str:
    """The dotted path of `customer[cards][0][number]`; the places in lists are left out."""
    name = _BRACKETS.sub(lambda step: "" if step[1] == "" or step[1].isdigit() else f".{step[1]}", name)
    return name.replace("[", ".").strip(".")


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


_HEAD_END = re.compile(rb"\r?\n\r?\n")
_PLAIN_ENCODINGS = frozenset({"", "7bit", "8bit", "binary"})


@dataclass(frozen=True, slots=True)
class BodyPart:
    """The places of a part's headers and content, and what the headers declare."""

    head: int
    start: int
    end: int
    name: str | None
    """Of the form field."""
    content_type: str | None
    file_name: str | None
    is_encoded: bool
    """Whether its content is in base64 or the like."""


def is_multipart(content_type: str | None) -> bool:
    """Return whether a body of this type has parts."""
    return content_type is not None and content_type.lstrip().lower().startswith("multipart/")


def masked_head(head: bytes, part: BodyPart) -> bytes:
    """Return the headers of a part, without the name of its file and whatever else may hold it."""
    if part.file_name is None and b"filename" not in head.lower():
        return head
    name = re.sub(r"[\"\r\n]", lambda found: f"%{ord(found[0]):02X}", part.name or "")
    lines = ["", f'Content-Disposition: form-data; name="{name}"; filename="{MASK}"']
    if kind := _PLAIN_TYPE.match(part.content_type or ""):
        lines.append(f"Content-Type: {kind[0]}")
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape")


def charset_of(content_type: str | None) -> str | None:
    """Return the encoding that a content type names."""
    return None if content_type is None else _message(content_type).get_content_charset()


def parts_of(body: bytes, content_type: str) -> list[BodyPart] | None:
    """Return the parts of a body in their order; None where it does not match its content type."""
    boundary = _message(content_type).get_boundary()
    if not boundary:
        return None
    mark = re.compile(rb"(?:\A|\r?\n)--" + re.escape(boundary.encode(errors="replace")) + rb"(--)?[ \t]*(?=\r?\n|\Z)")
    marks = list(mark.finditer(body))
    if len(marks) < 2 or not marks[-1][1] or any(found[1] for found in marks[:-1]):
        return None
    if body[: marks[0].start()].strip() or body[marks[-1].end() :].strip():
        return None
    parts = list(_parts(body, [(found.start(), found.end()) for found in marks]))
    return None if None in parts else [part for part in parts if part is not None]


def _parts(body: bytes, marks: list[tuple[int, int]]) -> Iterator[BodyPart | None]:
    for (_, before), (after, _) in pairwise(marks):
        blank = _HEAD_END.search(body, before, after)
        yield None if blank is None else _part(body, before, blank, after)


def _part(body: bytes, head: int, blank: re.Match[bytes], end: int) -> BodyPart:
    headers = HeaderParser().parsestr(body[head : blank.start()].lstrip(b"\r\n").decode(errors="replace"))
    name = headers.get_param("name", header="content-disposition")
    encoding = str(headers.get("content-transfer-encoding", "")).strip().lower()
    return BodyPart(
        head,
        blank.end(),
        end,
        None if name is None else collapse_rfc2231_value(name),
        headers.get("content-type"),
        headers.get_filename(),
        is_encoded=encoding not in _PLAIN_ENCODINGS,
    )


def _message(content_type: str) -> Message:
    message = Message()
    message["content-type"] = " ".join(content_type.split())
    return message
