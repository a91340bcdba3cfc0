"""What a service or database reports in bodies and errors, masked and cut: it is what an operator needs to fix it."""

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

# Masking covers all of this, so that a secret at the cut is not cut in half and missed.
_MASKED_LENGTH = 20_000

_MESSAGE_KEYS = (
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
    """Return the text as it may be shown: secrets masked, white space folded, cut at about a thousand characters."""
    text = " ".join(mask_start(text, _MASKED_LENGTH).split())
    if len(text) > LIMIT:
        text = text[: LIMIT - 1] + "…"
    return text or None


def message(error: object) -> str:
    """Return str() of an error, also where its __str__ is broken."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def match_text(texts: Texts | None, error: BaseException) -> Entry | None:
    """Return the entry of the first pattern that the message of an error matches."""
    if not texts:
        return None
    text = message(error)
    return next((entry for pattern, entry in texts if re.search(pattern, text, re.IGNORECASE)), None)


def body_detail(body: str | None) -> str | None:
    """Return the relevant part of a response body: a message in JSON, the title of a page, or the text."""
    if not body or not body.strip():
        return None
    start = body.lstrip()[:1]
    if start in ("{", "["):
        return shown(_json_detail(body))
    if start == "<":
        # The body is masked before the tags are removed: a tag may name the secret, as in <password>…</password>.
        page = mask_start(body, _MASKED_LENGTH)
        title = _TITLE.search(page)
        return shown(title[1] if title else _TAG.sub(" ", page))
    return shown(body)


def server_detail(error: BaseException) -> str | None:
    """Return what the server reported in the response that an error was raised for, as `raise_for_status()` does."""
    from redrive.classify.error_codes import http_answer

    answer = http_answer(error)
    return None if answer is None else body_detail(answer.body)


def error_detail(error: BaseException) -> str | None:
    """Return what an error reports: every error of a validation, a database's message with DETAIL, else its text."""
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
    read_problems: Any = attribute(error, "errors")
    try:
        # The input is left out: the record is stored elsewhere, and may hold secrets.
        errors = read_problems(include_url=False, include_context=False, include_input=False)
    except Exception:
        return message(error)
    return "; ".join(_describe_problem(problem) for problem in errors)


def _json_detail(body: str) -> str:
    import json

    try:
        texts = "; ".join(dict.fromkeys(_find_messages(json.loads(body), _DEPTH)))
    except (ValueError, RecursionError):
        return body
    return texts or body


def _find_messages(node: object, depth: int) -> Iterator[str]:
    """Yield the messages in a JSON document, outermost first."""
    if depth == 0:
        return
    if isinstance(node, str):
        if node.strip():
            yield node.strip()
    elif isinstance(node, list):
        for item in node:
            yield from _find_messages(item, depth - 1)
    elif isinstance(node, dict):
        if ("loc" in node or "field" in node) and ("msg" in node or "message" in node):
            yield _describe_problem(node)
            return
        for key in _MESSAGE_KEYS:
            value = node.get(key)
            if key in ("errors", "details", "detail") and isinstance(value, dict):
                yield from _find_field_messages(value, depth - 1)
            else:
                yield from _find_messages(value, depth - 1)


def _find_field_messages(node: dict[str, object], depth: int) -> Iterator[str]:
    """Yield messages with their keys, as of `{"fee": ["is not a number"]}`: the keys are part of the message."""
    messages = list(_find_messages(node, depth))
    if messages:
        yield from messages
        return
    for field, value in node.items():
        for text in _find_messages(value, depth):
            yield f"{field}: {text}"


def _describe_problem(problem: Any) -> str:
    """Return `fee: Input should be a valid number`, of pydantic's problem or of an API's in the same form."""
    location = problem.get("loc", problem.get("field", ""))
    if isinstance(location, list | tuple):
        location = ".".join(str(part) for part in location)
    text = problem.get("msg", problem.get("message", ""))
    return f"{location}: {text}" if location not in ("", None) else str(text)
