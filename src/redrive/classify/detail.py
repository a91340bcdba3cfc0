"""What the other side said, dug out of bodies and errors, masked and cut: it is what fixes the problem."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from redrive._internal.masking import mask_start
from redrive.classify.packs.pack import Texts
from redrive.classify.responses import attribute
from redrive.classify.tables.entry import Entry
from redrive.classify.type_names import type_names

LIMIT = 1_000

# Masking looks at all of this, so that a secret at the cut is not cut in half and missed.
_LOOK_AT = 20_000

_TELLING_KEYS = (
    "title",
    "message",
    "Message",
    "msg",
    "detail",
    "details",
    "description",
    "error_description",
    "error",
    "Error",
    "errors",
    "error_message",
    "errorMessage",
    "reason",
    "fault",
    "faultstring",
)
_DEPTH = 6
_TAG = re.compile(r"<(?:script|style)\b.*?(?:</(?:script|style)>|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title[^<>]*>([^<]*)</title>", re.IGNORECASE)


def shown(text: str) -> str | None:
    """The text as it may be shown: secrets masked, white space folded, cut at about a thousand characters."""
    text = " ".join(mask_start(text, _LOOK_AT).split())
    if len(text) > LIMIT:
        text = text[: LIMIT - 1] + "…"
    return text or None


def message(error: object) -> str:
    """str() of an error, also of one whose __str__ is broken."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def text_entry(texts: Texts | None, error: BaseException) -> Entry | None:
    """What the message of an error says, by the first pattern found in it."""
    if not texts:
        return None
    text = message(error)
    return next((entry for pattern, entry in texts if re.search(pattern, text, re.IGNORECASE)), None)


def body_detail(body: str | None) -> str | None:
    """The telling part of a response body: a message in JSON, the title of a page, or the text."""
    if not body or not body.strip():
        return None
    start = body.lstrip()[:1]
    if start in ("{", "["):
        return shown(_json_detail(body))
    if start == "<":
        # Masked before the tags go: they may be what names the secret, as in <password>…</password>.
        page = mask_start(body, _LOOK_AT)
        title = _TITLE.search(page)
        return shown(title[1] if title else _TAG.sub(" ", page))
    return shown(body)


def server_detail(error: BaseException) -> str | None:
    """What the server said in the answer that an error was raised for, as `raise_for_status()` does; else None."""
    from redrive.classify.error_codes import http_answer

    answer = http_answer(error)
    return None if answer is None else body_detail(answer.body)


def error_detail(error: BaseException) -> str | None:
    """What an error says: every error of a validation, a database's message with its DETAIL, else its text."""
    names = type_names(type(error))
    if "pydantic_core.ValidationError" in names or "pydantic.ValidationError" in names:
        return shown(_validation_detail(error))
    diagnostics = attribute(error, "diag")
    primary = attribute(diagnostics, "message_primary") or attribute(error, "message")
    if isinstance(primary, str) and primary:
        further = attribute(diagnostics, "message_detail") or attribute(error, "detail")
        return shown(f"{primary}; {further}" if isinstance(further, str) and further else primary)
    return shown(message(error))


def _validation_detail(error: BaseException) -> str:
    problems: Any = attribute(error, "errors")
    try:
        # The input is left out: the record is kept elsewhere, and may hold secrets.
        found = problems(include_url=False, include_context=False, include_input=False)
    except Exception:
        return message(error)
    return "; ".join(_located(problem) for problem in found)


def _json_detail(body: str) -> str:
    import json

    try:
        told = "; ".join(dict.fromkeys(_telling(json.loads(body), _DEPTH)))
    except (ValueError, RecursionError):
        return body
    return told or body


def _telling(node: object, depth: int) -> Iterator[str]:
    """The messages in a JSON document, outermost first."""
    if depth == 0:
        return
    if isinstance(node, str):
        if node.strip():
            yield node.strip()
    elif isinstance(node, list):
        for item in node:
            yield from _telling(item, depth - 1)
    elif isinstance(node, dict):
        if ("loc" in node or "field" in node) and ("msg" in node or "message" in node):
            yield _located(node)
            return
        for key in _TELLING_KEYS:
            value = node.get(key)
            if key in ("errors", "details", "detail") and isinstance(value, dict):
                yield from _by_field(value, depth - 1)
            else:
                yield from _telling(value, depth - 1)


def _by_field(node: dict[str, object], depth: int) -> Iterator[str]:
    """`{"fee": ["is not a number"]}`: the keys are part of the message."""
    found = list(_telling(node, depth))
    if found:
        yield from found
        return
    for field, value in node.items():
        for text in _telling(value, depth):
            yield f"{field}: {text}"


def _located(problem: Any) -> str:
    """`fee: Input should be a valid number`, from pydantic or from an API that speaks like it."""
    place = problem.get("loc", problem.get("field", ""))
    if isinstance(place, list | tuple):
        place = ".".join(str(part) for part in place)
    said = problem.get("msg", problem.get("message", ""))
    return f"{place}: {said}" if place not in ("", None) else str(said)
