"""Secrets in documents: by the names that values stand under, in commands given as lists, in bytes."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive._internal.masking.commands import is_command, mask_argument, mask_item
from redrive._internal.masking.known_values import mask_known
from redrive._internal.masking.patterns import MASK, SECRET_FIELD, SECRET_FIELDS, without_controls
from redrive._internal.masking.structures import NAMING, VALUES, WEAK, is_like_a_key, is_step, names_in

# Numbers under these names are secrets; under others, such as `token` and `signature`, they count something.
_SECRET_NUMBER = re.compile(r"(?:.*[\W_])?(?:\w{0,20}passw(?:or)?d|passcode|pwd|pw|otp|cvv2?|cvc2?|pin)", re.IGNORECASE)
# What columns of these names hold that are no secrets: a cookie has an equals sign, a signature is one long word.
_ORDINARY = {
    "pass": re.compile(r"yes|no|y|n|true|false|ok|passed|failed|fail|pass", re.IGNORECASE),
    "cookie": re.compile(r"[A-Za-z ]{1,40}"),
    "signature": re.compile(r"(?=.{1,60}\Z)[^\W\d_]{1,20}[.,]?(?: [^\W\d_]{1,20}[.,]?){0,5}"),
}
_VALUE_FIELD = re.compile("value|secret|plain(?:text)?|raw|current|old|new|text|data|content", re.IGNORECASE)

_WEAK = re.compile(WEAK, re.IGNORECASE)

# What the encoding of the store has for a value that JSON lacks, and what is a leaf of it.
_TAG_OF_BYTES = "$bytes"
_TAGS_OF_LEAVES = frozenset({"$bytes", "$text", "$repr", "$int", "$float", "$decimal"})
_TAGS_OF_ITEMS = frozenset({"$tuple", "$set", "$frozenset"})

# Beside these, a control character means that bytes are no text.
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")
_NO_ZEROS = str.maketrans("", "", "\0")

Mask = Callable[[str], str]


def mask_document(value: Any, mask: Mask) -> Any:
    """Return a document without secrets: of bytes that hold one, a masked text or their size."""
    return _Document(mask).of(value)


def mask_bytes(data: bytes, mask: Mask) -> bytes | str:
    """Return bytes as they are, or where they hold a secret: the masked text, or their size if they are no text.

    Of bytes beyond the length that is looked at, too, a text is shown by its beginning, and others by their size.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    # UTF-16 has zeros between the letters of a name.
    spread = text.translate(_NO_ZEROS)
    if all(mask(one) == without_controls(one) for one in {text, spread}):
        return data
    return f"{MASK} ({len(data):,} bytes)" if _BINARY.search(text) else mask(text)


class _Document:
    """One walk through a document."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def of(self, value: Any) -> Any:
        """Return any value, masked."""
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._items(value)
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, bytes):
            return mask_bytes(value, self._mask)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and (shown := self._mask(str(value))) != str(value):
            return shown  # a card that was read as a number
        return value

    def _mapping(self, fields: Mapping[Any, Any]) -> Any:
        tag, inner = next(iter(fields.items())) if len(fields) == 1 else (None, None)
        if tag == _TAG_OF_BYTES and isinstance(inner, str):
            return self._encoded(inner)
        if tag == "$map" and isinstance(inner, list):
            return {tag: [self._pair(pair) for pair in inner]}
        shown = {_name(name): self._under(name, value) for name, value in fields.items()}
        if (secret := _named_secret(fields)) is not None:
            for name, value in fields.items():
                if isinstance(name, str) and name.lower() in VALUES:
                    shown[name] = self._secret(secret, value)
                    shown = _without(shown, value)  # the message may contain it
        return shown

    def _pair(self, pair: Any) -> Any:
        """The key and the value of a mapping whose keys are no plain texts."""
        if not isinstance(pair, list) or len(pair) != 2:
            return self.of(pair)
        key, value = pair
        name = key
        if isinstance(key, dict) and isinstance(key.get(_TAG_OF_BYTES), str):
            name = _decoded(key[_TAG_OF_BYTES]).decode("latin-1")
        return [self.of(key), self._under(name, value)]

    def _encoded(self, text: str) -> Any:
        data = _decoded(text)
        shown = mask_bytes(data, self._mask)
        return {_TAG_OF_BYTES: text} if shown is data else shown

    def _items(self, items: Sequence[Any]) -> list[Any]:
        shown: list[Any] = []
        before: Any = None
        is_a_command = is_command(items)
        for at, item in enumerate(items):
            masked = self.of(item)
            if is_a_command and isinstance(item, str) and (hidden := mask_item(items, at)) != item:
                masked = self._mask(hidden)
            elif isinstance(item, str) and isinstance(masked, str) and (hidden := mask_argument(item, before)) != item:
                masked = hidden if hidden == MASK else self._mask(hidden)
            shown.append(masked)
            before = item
        return shown

    def _under(self, name: object, value: Any) -> Any:
        if not isinstance(name, str):
            return self.of(value)
        if SECRET_FIELD.fullmatch(name):
            return self._secret(name, value)
        if SECRET_FIELDS.fullmatch(name) and isinstance(value, list | tuple | Mapping):
            is_of_a_language = name.lower() == "tokens" and not any(
                isinstance(item, str) and is_like_a_key(item) for item in value
            )
            return self.of(value) if is_of_a_language and not isinstance(value, Mapping) else self._secrets(value)
        return self._headers(value) if name.lower().endswith("headers") else self.of(value)

    def _secret(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and _ordinary(name, value):
            return self._mask(value)
        if isinstance(value, str | bytes):
            return MASK if value else value
        if isinstance(value, int | float) and not isinstance(value, bool) and _SECRET_NUMBER.fullmatch(name):
            return MASK
        if not isinstance(value, list | tuple | Mapping):
            return self.of(value)
        return self._secrets(value, whole=_WEAK.fullmatch(name) is None)

    def _secrets(self, value: Any, *, whole: bool = True) -> Any:
        """Mask the texts of a container that is named like a secret; if not whole, those of lists and under `value`."""
        if isinstance(value, list | tuple):
            return [MASK if isinstance(item, str) and item else self._secrets(item, whole=whole) for item in value]
        if not isinstance(value, Mapping):
            return self.of(value)
        tag = next(iter(value)) if len(value) == 1 else None
        if tag in _TAGS_OF_LEAVES:
            return MASK
        if tag in _TAGS_OF_ITEMS and isinstance(value[tag], list):
            return {tag: self._secrets(value[tag], whole=whole)}
        if whole:
            return {
                _name(name): MASK if isinstance(inner, str | bytes) and inner else self._secrets(inner)
                for name, inner in value.items()
            }
        shown = self._mapping(value)
        if isinstance(shown, dict):
            hidden = [name for name in value if isinstance(name, str) and _VALUE_FIELD.fullmatch(name)]
            shown.update({name: MASK for name in hidden if isinstance(value[name], str) and value[name]})
        return shown

    def _headers(self, value: Any) -> Any:
        """Headers as pairs: ["X-Api-Key", "abc"]."""
        if isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get("$tuple"), list):
            return {"$tuple": self._headers(value["$tuple"])}
        if not isinstance(value, list | tuple):
            return self.of(value)
        return [self._header(item) for item in value]

    def _header(self, item: Any) -> Any:
        pair = item.get("$tuple") if isinstance(item, Mapping) and len(item) == 1 else item
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return self.of(item)
        shown = self._pair(list(pair))
        return shown if pair is item else {"$tuple": shown}


def _named_secret(fields: Mapping[Any, Any]) -> str | None:
    """Return the name of a secret that an entry has beside its value: `{"field": "password", "input": "abc"}`."""
    for naming in NAMING:
        named = fields.get(naming)
        if isinstance(named, Mapping) and len(named) == 1:
            named = named.get("$tuple")
        steps = named if isinstance(named, list | tuple) else [named]
        for step in steps:
            for name in names_in("", step) if isinstance(step, str) else ():
                if is_step(name):
                    return name
    return None


_SHORTEST = 6  # characters of a value; a shorter one is found in every message


def _without(fields: dict[Any, Any], value: object) -> dict[Any, Any]:
    if not isinstance(value, str) or len(value) < _SHORTEST:
        return fields
    return {name: text.replace(value, MASK) if isinstance(text, str) else text for name, text in fields.items()}


def _name(name: object) -> Any:
    """A name as it is, without known values; a number may be one, too."""
    if isinstance(name, bool) or not isinstance(name, str | int):
        return name
    shown = mask_known(str(name))
    return name if shown == str(name) else shown


def _ordinary(name: str, value: str) -> bool:
    """Return whether a text is no secret under a name that is also a common word."""
    pattern = _ORDINARY.get(name.lower())
    return pattern is not None and pattern.fullmatch(value) is not None


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text)
    except ValueError:
        return text.encode(errors="replace")
