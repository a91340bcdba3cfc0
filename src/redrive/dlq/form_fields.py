"""Form fields in texts: URL-encoded bodies, query strings and parts of multipart bodies. Used by redaction."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote_plus, unquote_plus

# A field begins the text, or follows the mark of a query string or another field.
_FIELD = re.compile(r"(?P<before>(?:^|[?&;])\s*)(?P<name>[^=&?;#\s]+)=(?P<value>[^&#\s]*)")
# Header lines are few and short; the limits keep the search linear.
_PART = re.compile(
    r"(?P<head>^content-disposition:[ \t]{0,8}form-data;"
    r"[^\r\n]{0,200}?\bname=\"(?P<name>[^\"\r\n]{0,200})\"[^\r\n]{0,400}"
    r"(?:\r?\n[^\r\n]{1,400}){0,8}\r?\n\r?\n)(?P<value>.*?)(?=\r?\n--|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
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
        return _PART.sub(lambda part: part["head"] + mask(field_path(part["name"]), part["value"]), text)

    def field(match: re.Match[str]) -> str:
        value = unquote_plus(match["value"], errors="surrogateescape")
        shown = mask(field_path(unquote_plus(match["name"])), value)
        if shown == value:
            return match[0]
        return f"{match['before']}{match['name']}={quote_plus(shown, safe='*', errors='surrogateescape')}"

    return _FIELD.sub(field, text)


def is_form(text: str, content_type: str | None) -> bool:
    """Whether all of a body is a URL-encoded form, in which blanks are encoded.

    A body that does not say that it is a form has no empty values: base64 ends as if it had.
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
    return name.strip(".")
