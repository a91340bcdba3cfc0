"""What of a record may be shown: fields that the user named are masked wherever the record or its error is displayed.

| pattern          | masks                                                                  |
|------------------|------------------------------------------------------------------------|
| `card_number`    | a field of that name, however deep                                     |
| `*.ssn`          | a field of that name, but not at the top                               |
| `customer.email` | that path from the top, through lists; also a flat key spelled like it |
| `*_token`        | names that end so, however deep; `?` stands for one character          |

All that is below a named path is masked with it, however the path is written: `card` also names `card[number]` and
`card.number` of a form, a query string or a flat key. Case does not matter. `*` alone between dots is any path of one
step or more. In the record of a call, a path also begins at the top of the body, of the query string and of each
argument: `customer.email` is `body.customer.email`, too.

The body of a request is masked by field where it is JSON, NDJSON, a form, or parts that are. Any other body, and any
other part, is masked whole, as is a record without names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from html import escape
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, quote_plus, unquote
from uuid import UUID

from redrive._internal.masking import MASK, mask, mask_start
from redrive.dlq.masked_values import hides_by, mask_parts, mask_reported, mask_values
from redrive.dlq.message_bodies import (
    BodyPart,
    charset_of,
    documents_of,
    field_path,
    is_form,
    is_multipart,
    mask_form,
    masked_head,
    parts_of,
)
from redrive.store.encoding import ObjectText, decode, encode

# Shorter values are found in every message.
_SHORTEST = 4

_SCALARS = (str, bytes, int, float, complex, Decimal, date, time, timedelta, UUID, type(None))

# A value that pydantic cut short cannot be recognised: what is left of it may be the secret.
_CUT_SHORT = re.compile(r"input_value=(?:(?!, input_type=)[^\n]){0,100}?\.\.\.(?:(?!, input_type=)[^\n]){0,100}")

_REQUEST = frozenset({"method", "url", "content_type", "body"})
_CALLS = (frozenset({"function", "args", "kwargs"}), _REQUEST)
_PARTS_OF_CALLS = frozenset({"args", "kwargs", "bound", "url", "body"})

_LIKE_A_UUID = re.compile(r"\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?")
_LONGEST_MOMENT = 40

_IS_MASK = re.compile(rf"{re.escape(MASK)}(?: \([0-9]{{1,20}} (?:characters|bytes)\))?")


class Redactor:
    """Masks the named fields of records, and their values in messages."""

    __slots__ = ("_is_named", "fields")

    def __init__(self, fields: Iterable[str]) -> None:
        if isinstance(fields, str | bytes) or not isinstance(fields, Iterable):
            raise TypeError(f"redact takes a list of field names, not {fields!r}")
        self.fields = tuple(fields)
        pattern = re.compile("|".join(map(_path_pattern, self.fields)), re.IGNORECASE | re.DOTALL)
        # The paths of one record are those of the next.
        self._is_named: Callable[[str], bool] = lru_cache(4_096)(
            lambda path: any(map(pattern.fullmatch, _notations(path)))
        )

    def __repr__(self) -> str:
        return f"Redactor({list(self.fields)!r})"

    def record(self, value: Any) -> Any:
        """The record with its named fields masked, and their values where other texts of it contain them.

        What has no name, as a line of text or a row without columns, is masked whole: who knows where the secret is.
        """
        if not self.fields:
            return value
        copy, secrets = self._part(value)
        return _scrub(copy, secrets) if secrets else copy

    def text(self, message: str, record: Any, *, rows: Iterable[Any] = (), most: int | None = None) -> str:
        """The message without the values of the record's named fields, and without what looks like a credential.

        Args:
            rows: records whose values the message may show as well, such as the rows of a page.
            most: characters of it that are looked at for credentials, and returned.
        """
        looking = mask if most is None else lambda text: mask_start(text, most)
        if not self.fields:
            return looking(message)
        walks: list[_Parting] = []
        for each in (record, *rows):
            walk = self._walk(each)
            if walk is None:
                return MASK  # it cannot be looked into, so what of it the message shows is unknown
            walks.append(walk)
        secrets = {secret for walk in walks for secret in walk.secrets if len(secret.strip()) >= _SHORTEST}
        message = self._without_reported(message, walks)
        cut = {text for secret in secrets for text in (secret, secret.strip())}
        message = mask_values(message, (form for secret in secrets for form in _forms_in_messages(secret)), cut=cut)
        # After credentials: one that has lost its beginning does not look like one.
        return mask_parts(looking(message), cut)

    def _without_reported(self, message: str, walks: Sequence[_Parting]) -> str:
        """Return a message without the values that stand beside the names of their columns."""
        message = _CUT_SHORT.sub(f"input_value={MASK}", message)
        fields = {name for walk in walks for name in walk.shown}
        hidden = {name.casefold() for walk in walks for name in walk.hidden}
        hides = hides_by(
            lambda name: name.casefold() in hidden or self._is_named(name), fields, unknown=bool(hidden) or not fields
        )
        return mask_reported(message, hides)

    def is_shown(self, text: str, record: Any) -> bool:
        """Return whether a text, such as a key or a position, holds the value of a named field.

        Short values are found where they are a whole part of the text: of `EU|7`, or of `card 7, line 3`, where the
        field is named.
        """
        secrets = self._secrets(record)
        if secrets is None:
            return True
        plain = text.replace("\\|", "|").replace("\\\\", "\\")
        if any(len(secret.strip()) >= _SHORTEST and (secret in text or secret in plain) for secret in secrets):
            return True
        if not secrets.isdisjoint({text, plain, *text.split("|")}):
            return True
        return any(self._is_named(part.partition(" ")[0]) for part in text.split(", ") if " " in part)

    def has_masked_field(self, record: Any) -> bool:
        """Return whether a named field, or a record without names, holds the mask instead of its value."""
        return bool(self.fields) and any(map(_IS_MASK.fullmatch, self._secrets(record) or ()))

    def can_read(self, record: Any) -> bool:
        """Return whether a record is masked by field, or has nothing that a message could contain of a request.

        The answer of a server to a body that is masked whole may contain any part of it.
        """
        walk = self._walk(record)
        return walk is not None and not walk.has_unread

    def _secrets(self, record: Any) -> set[str] | None:
        """Return what the named fields of a record hold; None for one that cannot be looked into."""
        walk = self._walk(record)
        return None if walk is None else walk.secrets

    def _walk(self, record: Any) -> _Parting | None:
        """Return what was met in a record; None for one that cannot be looked into, whatever it raises."""
        parting = self._parting(record)
        try:
            parting.copy(record, "")
        except Exception:
            return None
        return parting

    def _parting(self, record: Any) -> _Parting:
        if not _is_call(record):
            return _Parting(self._is_named)
        return _Parting(self._is_named_in_call, record if record.keys() >= _REQUEST else None)

    def _is_named_in_call(self, path: str) -> bool:
        return self._is_named(path) or any(map(self._is_named, _paths_inside(path)))

    def _part(self, value: Any) -> tuple[Any, list[str] | None]:
        """A copy with the named fields masked, and their values, the longest first: one may be part of another.

        A record that cannot be looked into, whatever it raises, is masked whole, and what it holds is not known.
        """
        parting = self._parting(value)
        try:
            copy = parting.copy(value, "")
        except Exception:
            return MASK, None
        secrets = (secret for secret in parting.secrets if len(secret.strip()) >= _SHORTEST)
        return copy, sorted(secrets, key=len, reverse=True)


class _Parting:
    """One walk through a record that masks what is named and remembers what it was."""

    def __init__(self, is_named: Callable[[str], bool], request: Mapping[str, Any] | None = None) -> None:
        self._is_named = is_named
        self._request = request
        self._nameless = {""} if request is None else {"", "body"}
        self.secrets: set[str] = set()
        self.hidden: set[str] = set()
        """Names of the fields that were masked."""
        self.shown: set[str] = set()
        """Names of the others."""
        self.has_unread = False  # whether a body, or a part of one, was masked whole

    def copy(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {
                self._key(key): self._field(each, f"{path}.{_name(key)}" if path else _name(key))
                for key, each in value.items()
            }
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.copy(each, path) for each in value)
        if isinstance(value, ObjectText):
            return self._hide_object(value)
        if isinstance(value, str | bytes):
            return self._text(value, path)
        if isinstance(value, _SCALARS):
            is_shown = path not in self._nameless or value is None or isinstance(value, bool)
            return value if is_shown else self._hide(value)
        plain = decode(encode(value))
        if isinstance(plain, str | bytes) and not isinstance(plain, ObjectText):
            return self._hide(plain)
        return self.copy(plain, path)

    def _key(self, key: Any) -> Any:
        plain = key if isinstance(key, _SCALARS) else next(iter(decode(encode({key: None}))))
        return self._hide_object(plain) if isinstance(plain, ObjectText) else key

    def _field(self, value: Any, path: str) -> Any:
        is_named = self._is_named(path)
        (self.hidden if is_named else self.shown).add(path.rpartition(".")[2])
        if is_named:
            self._remember(value)
            return MASK
        if path == "body" and self._request is not None and isinstance(value, str | bytes):
            content_type = self._request["content_type"]
            return self._body(value, content_type if isinstance(content_type, str) else None)
        return self.copy(value, path)

    def _text(self, text: str | bytes, path: str) -> Any:
        shown = self._json(text, path)
        if shown is not None:
            return shown
        return self._hide(text) if path in self._nameless else self._form(text, path)

    def _json(self, text: str | bytes, path: str, charset: str | None = None) -> str | bytes | None:
        """A text of JSON documents with their named fields masked; None for any other text."""
        documents = documents_of(text, charset)
        if documents is None:
            return None
        copies = [self.copy(document, path) for document in documents.values]
        if copies == documents.values:
            return text
        shown = documents.text(copies)
        if isinstance(shown, bytes) and isinstance(text, str):
            return shown.decode(errors="surrogatepass")
        return shown

    def _body(self, body: str | bytes, content_type: str | None, path: str = "body") -> str | bytes:
        """A body, or a part of one, with its named fields masked; masked whole where it cannot be read by field."""
        if not body:
            return body
        if is_multipart(content_type):
            shown = self._multipart(body, str(content_type), path)
        else:
            shown = self._json(body, path, charset_of(content_type))
            text = body if isinstance(body, str) else body.decode(errors="surrogateescape")
            if shown is None and is_form(text, content_type):
                shown = self._form(body, path)
        return self._unread(body) if shown is None else shown

    def _unread(self, body: str | bytes) -> str | bytes:
        # What is masked already was stored so, with a message that contains nothing of it.
        is_mask = _IS_MASK.fullmatch(body if isinstance(body, str) else body.decode(errors="replace"))
        self.has_unread = self.has_unread or not is_mask
        hidden = self._hide(body)
        return body if is_mask else hidden if isinstance(body, str) else hidden.encode()

    def _multipart(self, body: str | bytes, content_type: str, path: str) -> str | bytes | None:
        content = body.encode(errors="surrogatepass") if isinstance(body, str) else body
        parts = parts_of(content, content_type)
        if parts is None:
            return None
        pieces: list[bytes] = []
        end = 0
        for part in parts:
            pieces += (content[end : part.head], self._part_of_body(content, part, path))
            end = part.end
        shown = b"".join([*pieces, content[end:]])
        return shown.decode(errors="surrogatepass") if isinstance(body, str) else shown

    def _part_of_body(self, body: bytes, part: BodyPart, path: str) -> bytes:
        """A part with its headers; of a named one, the name of its file is masked as well."""
        head, content = body[part.head : part.start], body[part.start : part.end]
        inside = path if part.name is None else f"{path}.{field_path(part.name)}"
        if part.name is not None and self._is_named(inside):
            self._remember(content)
            if part.file_name is not None:
                self._remember(part.file_name)
                self._remember(PurePath(part.file_name).stem)
            return masked_head(head, part) + MASK.encode()
        # A path also begins at the top of a document that is a part.
        reader = _Parting(lambda inner: self._is_named(inner) or self._is_named(path + inner.removeprefix(inside)))
        reader.secrets, reader._nameless = self.secrets, {path}
        plain_type = (part.content_type or "text/plain").partition(";")[0].strip().lower()
        if part.is_encoded:
            shown = reader._unread(content)
        elif part.name is None or part.file_name is not None or plain_type != "text/plain":
            shown = reader._body(content, part.content_type, inside)
        else:
            shown = reader._text(content, inside)
        self.has_unread = self.has_unread or reader.has_unread
        return head + (shown if isinstance(shown, bytes) else shown.encode(errors="surrogatepass"))

    def _form(self, text: str | bytes, path: str) -> str | bytes:
        """A text with the named fields of a form body or of a query string masked."""
        if isinstance(text, bytes):
            shown = self._form(text.decode(errors="surrogateescape"), path)
            return shown.encode(errors="surrogateescape") if isinstance(shown, str) else shown
        return mask_form(text, lambda name, value: str(self._field(value, f"{path}.{name}")))

    def _hide_object(self, text: ObjectText) -> str:
        self.has_unread = True  # what an object shows of itself may well be its fields
        return self._hide(text)

    def _hide(self, value: Any) -> str:
        self._remember(value)
        if isinstance(value, str | bytes):
            return f"{MASK} ({len(value)} {'characters' if isinstance(value, str) else 'bytes'})"
        return MASK

    def _remember(self, value: Any) -> None:
        for leaf in _leaves(value):
            self.secrets.update(_spellings(leaf))


def has_mask(value: Any) -> bool:
    """Return whether something in a record is masked."""
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, bytes):
        return MASK.encode() in value
    if isinstance(value, Mapping):
        return any(map(has_mask, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(has_mask, value))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, str | bytes):
        yield value
        documents = documents_of(value)
        value = () if documents is None else documents.values
    elif isinstance(value, _SCALARS):
        if value is not None and not isinstance(value, bool):
            yield value
        return
    elif not isinstance(value, Mapping | list | tuple | set | frozenset):
        value = [decode(encode(value))]
    for each in value.values() if isinstance(value, Mapping) else value:
        yield from _leaves(each)


def _spellings(value: Any) -> Iterator[str]:
    """Iterate over the forms of a value in a message: unchanged, as Python, as JSON, and encoded for forms and URLs."""
    if isinstance(value, bytes):
        yield repr(value)[2:-1]
        value = value.decode(errors="replace")
    if isinstance(value, str):
        yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1])
        yield from (quote(value, safe="", errors="replace"), quote_plus(value, errors="replace"))
        yield from _as_databases_write(value)
    else:
        yield from (str(value), repr(value))
    if isinstance(value, datetime):
        yield from _moment_spellings(value)


def _as_databases_write(text: str) -> Iterator[str]:
    """Iterate over the forms in which a database prints a text: a UUID in lower case, a time with or without T."""
    if _LIKE_A_UUID.fullmatch(text):
        yield str(UUID(text))
    elif text[:4].isdigit() and 16 <= len(text) <= _LONGEST_MOMENT:
        with suppress(ValueError):
            yield from _moment_spellings(datetime.fromisoformat(text))


def _moment_spellings(moment: datetime) -> Iterator[str]:
    seconds = moment.replace(microsecond=0, tzinfo=None)
    yield from (moment.isoformat(), str(moment), seconds.isoformat(), str(seconds))


def _forms_in_messages(secret: str) -> set[str]:
    """Return how a message may write a spelling: stripped, in one case, in SQL, in HTML, again in a URL or JSON."""
    plain = secret.strip()
    return {
        *(secret, plain, plain.upper(), plain.lower(), plain.replace("'", "''"), escape(plain)),
        *(quote(secret, safe="", errors="replace"), json.dumps(secret)[1:-1]),
    }


def _path_pattern(field: object) -> str:
    if not isinstance(field, str):
        raise TypeError(f"redact takes names of fields, not {field!r}")
    steps = field.split(".")
    if not all(step.strip() for step in steps):
        raise ValueError(f"redact cannot read the field {field!r}: a name is missing")
    patterns = [
        ".+" if step == "*" else re.escape(step).replace(r"\*", "[^.]*").replace(r"\?", "[^.]") for step in steps
    ]
    anywhere = r"(?:.*\.)?" if len(steps) == 1 else ""
    return anywhere + r"\.".join(patterns) + r"(?:\..*)?"


def _notations(path: str) -> Iterator[str]:
    """A path as its keys are written, and as dotted names: a key may be the path of a form, `card%5Bnumber%5D`."""
    yield path
    if "[" in path or "%" in path:
        yield field_path(unquote(path))


def _is_call(record: Any) -> bool:
    """Return whether a record has the fields of a call or of a request, as the letters of services do."""
    return isinstance(record, Mapping) and any(fields <= record.keys() for fields in _CALLS)


def _paths_inside(path: str) -> Iterator[str]:
    """The path of a field of a call from the top of what the field is in."""
    part, _, inside = path.partition(".")
    if part in _PARTS_OF_CALLS and inside:
        yield inside
        _, _, inside = inside.partition(".")
        if part in ("kwargs", "bound") and inside:
            yield inside


def _name(key: object) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _without(secrets: list[str], text: str) -> str:
    for secret in secrets:  # one by one: a pattern of them all would be tried at every character
        text = text.replace(secret, MASK)
    return text


def _scrub(value: Any, secrets: list[str]) -> Any:
    """The value with the secrets taken out of its texts."""
    if isinstance(value, str):
        return _without(secrets, value)
    if isinstance(value, dict):
        return {key: _scrub(each, secrets) for key, each in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_scrub(each, secrets) for each in value)
    return value
