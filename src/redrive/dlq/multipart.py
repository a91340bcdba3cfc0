"""The parts of multipart bodies: forms with files, and what APIs send as multipart/mixed. Used by redaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from itertools import pairwise

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_PLAIN_ENCODINGS = frozenset({"", "7bit", "8bit", "binary"})


@dataclass(frozen=True, slots=True)
class Part:
    """Where the content of a part is, and what its headers say of it."""

    start: int
    end: int
    name: str | None
    """Of the form field."""
    content_type: str | None
    is_file: bool
    is_encoded: bool
    """Whether its content is in base64 or the like."""


def is_multipart(content_type: str | None) -> bool:
    """Whether a body of this type has parts."""
    return content_type is not None and content_type.lstrip().lower().startswith("multipart/")


def charset_of(content_type: str | None) -> str | None:
    """Return the encoding that a content type names."""
    return None if content_type is None else _message(content_type).get_content_charset()


def parts_of(body: bytes, content_type: str) -> list[Part] | None:
    """Return the parts of a body in their order; None where it is not made as its content type says."""
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


def _parts(body: bytes, marks: list[tuple[int, int]]) -> Iterator[Part | None]:
    for (_, before), (after, _) in pairwise(marks):
        blank = _HEAD_END.search(body, before, after)
        yield None if blank is None else _part(body[before : blank.start()], blank.end(), after)


def _part(head: bytes, start: int, end: int) -> Part:
    headers = HeaderParser().parsestr(head.lstrip(b"\r\n").decode(errors="replace"))
    name = headers.get_param("name", header="content-disposition")
    encoding = str(headers.get("content-transfer-encoding", "")).strip().lower()
    return Part(
        start,
        end,
        None if name is None else collapse_rfc2231_value(name),
        headers.get("content-type"),
        is_file=headers.get_filename() is not None,
        is_encoded=encoding not in _PLAIN_ENCODINGS,
    )


def _message(content_type: str) -> Message:
    message = Message()
    message["content-type"] = " ".join(content_type.split())
    return message
