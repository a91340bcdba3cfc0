"""Tell by the first bytes of a file that it is not what it is read as. Used by `rows.csv` and `rows.ndjson`."""

from __future__ import annotations

import codecs
import re

from redrive.errors import SourceError

START = 4_096  # bytes that show what a file is; a page may begin with empty lines
ONE_OBJECT_PER_LINE = "Write one object per line, for an array as with jq -c '.[]'"

_HTML = re.compile(rb"\A\s*<(?:!--|(?:!doctype html|html|head|body|title|meta|script|style|table)\b)", re.IGNORECASE)
_XML = re.compile(rb"\A\s*<(?:\?xml|!doctype)\b", re.IGNORECASE)
_UTF_16 = re.compile(rb"\xff\xfe|\xfe\xff|\0\0\xfe\xff|(?:[\t\n\r -~]\0){4}|(?:\0[\t\n\r -~]){4}")


def refuse_markup(name: str, start: bytes, expected: str) -> None:
    """Raise SourceError where a file begins as HTML or XML does.

    Args:
        expected: the format the file is read as: "CSV".
    """
    if _HTML.match(start):
        raise SourceError(
            f"{name} is an HTML page, not {expected}: it may be the error page of a download; fetch the file again"
        )
    if _XML.match(start):
        raise SourceError(f"{name} is an XML file, not {expected}: convert it to {expected} first")


def refuse_utf_16(name: str, start: bytes) -> None:
    """Raise SourceError where a file begins as UTF-16 or UTF-32 does."""
    if not _UTF_16.match(start):
        return
    is_wide = start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    found = "UTF-32" if is_wide else "UTF-16"
    raise SourceError(f"{name} is {found}: convert it to UTF-8 first, as with iconv -f {found} -t UTF-8")


def refuse_json_document(name: str, start: bytes) -> None:
    """Raise SourceError where a file begins as JSON over several lines does.

    Its last object may stand on a line by itself, so that not every line would be rejected.
    """
    first, *rest = [line.strip() for line in start.splitlines() if line.strip()][:2] or [b""]
    is_array = first == b"[" or (first.startswith(b"[{") and first.endswith(b","))
    is_object = first == b"{" and bool(rest) and rest[0].startswith(b'"')
    if is_array or is_object:
        kind = "array" if is_array else "object"
        raise SourceError(f"{name} is a JSON {kind} over several lines, not NDJSON. {ONE_OBJECT_PER_LINE}")
