"""Secrets in documents that a text shows: JSON within JSON at any depth, reprs, errors of validation, YAML.

A string may be escaped several times, and a container may hold others. So names are found by patterns, and where their
values end is read token by token, once for the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from redrive._internal.masking.patterns import MASK, NAMES, SECRET_FIELD, SECRET_FIELDS, TELLING, LazyPattern

__all__ = ["NAMING", "VALUES", "WEAK", "is_like_a_key", "is_step", "mask_structures", "names_in"]

_QUOTE: Final = r"(?<!\\)\\*['\"]"
_ASSIGNED: Final = r"\s*(?::=?|=>?)\s*"
# What may stand before a quoted value: a class that holds it, and the letters of Python's literals.
_WRAPPED: Final = r"(?:[a-z_][\w.]{0,40}\(\s?)?[bru]{0,2}"

_TOKEN = re.compile(r"(?<!\\)(\\*)(['\"])|[()\[\]{}]")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
# After the quote that ends a string stands one of these, also at the end of a text within a text.
_BEHIND_A_STRING = re.compile(r"\s|[,;:&)\]}]|\\|['\"]|\Z")


def mask_structures(text: str, lowered: str) -> str:
    """Return the text without what documents have under the names of secrets; `lowered` is it in lower case."""
    if "'" in lowered or '"' in lowered:
        if any(word in lowered for word in _VALUE_WORDS):
            text = _mask_named_values(text)
        if ":" in lowered or "=" in lowered:
            text = _mask_strings(text)
    if "(" in lowered or "[" in lowered or "{" in lowered:
        text = _mask_containers(text)
    if ":\n" in lowered:
        text = _mask_yaml(text)
    if "value" in lowered and "name" in lowered and "\n" in lowered:
        text = _NAME_AND_VALUE.sub(rf"\1{MASK}", text)
    return text


# ── strings ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Quote(NamedTuple):
    """A quotation mark with its backslashes."""

    slashes: int
    mark: str

    def ends(self, token: re.Match[str]) -> bool:
        r"""Return whether a quotation mark ends the string that this one begins.

        Within `\"…\"`, `\\\"` is part of the value, and `\\\\\"` is a backslash of the value and the end.
        """
        if token[2] != self.mark:
            return False
        extra = len(token[1]) - self.slashes
        if not extra:
            return True
        is_even = extra > 0 and extra % (1 << (self.slashes.bit_length() + 1)) == 0
        # In the repr of JSON, what is part of a value has an even number, too.
        return is_even and _BEHIND_A_STRING.match(token.string, token.end()) is not None


def _end_of_string(text: str, at: int, quote: _Quote) -> tuple[int, int]:
    """Return where the content of a string ends that begins here, and where the string ends."""
    for token in _TOKEN.finditer(text, at):
        if token[2] and quote.ends(token):
            return token.end() - 1 - quote.slashes, token.end()
    return len(text), len(text)


_NAMED_STRING = LazyPattern(rf"({_QUOTE}){NAMES}\1\]?{_ASSIGNED}{_WRAPPED}(\\*)(['\"])", re.IGNORECASE)


def _mask_strings(text: str) -> str:
    """Mask `"api_key": "abc"`, `\\"api_key\\": \\"abc\\"`, `'api_key' => 'abc'`, `it["api_key"] = "abc"`."""
    pieces, done = [], 0
    while named := _NAMED_STRING.compiled.search(text, done):
        end, after = _end_of_string(text, named.end(), _Quote(len(named[2]), named[3]))
        pieces += [text[done : named.end()], MASK if end > named.end() else "", text[end:after]]
        done = after
    return "".join(pieces) + text[done:] if pieces else text


# ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────────

# Under these names a container has other things, too: `"authorization": {"status": "declined"}`.
WEAK: Final = r"(?:(?:proxy-)?authorization|(?:set-)?cookie|(?:[\w-]{1,40}[-_])?signature|otp|pin|x-amz-[\w-]{1,60})"
_OPENED = LazyPattern(
    rf"(?<![\w-])(?:(?P<quote>{_QUOTE}))?(?!{WEAK}\b)(?P<name>{TELLING}s?|(?:[\w-]{{1,40}}[-_])?auth)(?(quote)(?P=quote))\]?"
    rf"{_ASSIGNED}(?P<value>(?:(?:[A-Za-z_]\w{{0,60}}\.){{0,5}}(?-i:[A-Z])\w{{0,60}}(?=\())?[(\[{{])",
    re.IGNORECASE,
)
_KEY = re.compile(r"\s*:")
_LIKE_A_KEY = re.compile(r"(?=\D*\d)[^\s,;'\"()\[\]{}=]{8,}")
_PAIR = re.compile(r"[^()\[\]{},]{1,500},[^()\[\]{}]{1,500}\)?")
_SENTENCE_WITH_VALUE = re.compile(r"(: )[^\s'\"\\]++(?=\\*['\"]\s*[,\]])")


def is_like_a_key(value: str) -> bool:
    """Return whether a value is one long word with digits."""
    return _LIKE_A_KEY.fullmatch(value) is not None


class _Container(NamedTuple):
    """A container with what it holds."""

    end: int
    values: list[str]
    """Its strings that are no names."""
    is_quoted: bool


def _read_container(text: str, at: int) -> _Container:
    """Read a container from its opening bracket; one that is not closed ends with the text."""
    awaited: list[str] = []
    values: list[str] = []
    quote: _Quote | None = None
    starts = 0
    is_quoted = False
    for token in _TOKEN.finditer(text, at):
        sign = token[0]
        if quote is not None:
            if token[2] and quote.ends(token):
                value = text[starts : token.end() - 1 - quote.slashes]
                quote = None
                is_name = awaited[-1] == "}" and _KEY.match(text, token.end())
                # What has a blank in a list is the sentence of an error: "This field is required."
                is_sentence = awaited[-1] == "]" and any(map(str.isspace, value))
                if value and not is_name and not is_sentence:
                    values.append(value)
        elif token[2]:
            if not _is_apostrophe(text, token.start()):
                quote, starts, is_quoted = _Quote(len(token[1]), token[2]), token.end(), True
        elif sign in _CLOSING:
            awaited.append(_CLOSING[sign])
        elif sign == awaited[-1]:
            awaited.pop()
            if not awaited:
                return _Container(token.end(), values, is_quoted)
    if quote is not None and starts < len(text):
        values.append(text[starts:])
    return _Container(len(text), values, is_quoted)


def _is_apostrophe(text: str, at: int) -> bool:
    """Return whether a quotation mark stands within a word: `don't`, but not `b'abc'`."""
    word = re.search(r"\w{1,3}\Z", text[max(0, at - 3) : at])
    return word is not None and word[0].lower() not in {"b", "r", "u", "f", "br", "rb"}


def _mask_containers(text: str) -> str:
    """Mask `credentials=('u', 'abc')`, `password=Secret(value='abc')`, `'tokens': {'prod': 'abc'}`."""
    pieces, done = [], 0
    while opened := _OPENED.compiled.search(text, done):
        container = _read_container(text, opened.end() - 1)
        inner = text[opened.end() : container.end]
        pieces.append(text[done : opened.start("value")])
        if _holds_a_secret(opened, container, inner):
            pieces.append(MASK)
        else:
            shown = text[opened.start("value") : container.end]
            pieces.append(_SENTENCE_WITH_VALUE.sub(rf"\1{MASK}", shown) if ": " in shown else shown)
        done = container.end
    return "".join(pieces) + text[done:] if pieces else text


def _holds_a_secret(opened: re.Match[str], container: _Container, inner: str) -> bool:
    name, bracket = opened["name"].lower(), opened[0][-1]
    if not container.is_quoted:
        if name.endswith(("auth", "credential", "credentials")) and opened["value"] == "(" and "=" in opened[0]:
            return _PAIR.fullmatch(inner) is not None  # auth=(user, abc)
        return is_like_a_key(inner.rstrip(")]}"))
    if bracket == "[" and name.endswith("auth"):
        return len(container.values) > 1
    if bracket == "[" and name == "tokens":  # of a language
        return any(map(is_like_a_key, container.values))
    return bool(container.values)


# ── names and values of one entry ─────────────────────────────────────────────────────────────────────────────────────

NAMING: Final = (
    "name",
    "key",
    "header",
    "field",
    "path",
    "property",
    "param",
    "parameter",
    "attribute",
    "variable",
    "loc",
)
VALUES: Final = ("value", "rejectedvalue", "invalidvalue", "input", "received")
_VALUE_WORDS: Final = ("value", "input", "received")
_ENTRY = LazyPattern(
    rf"({_QUOTE})(?P<name>{'|'.join((*NAMING, *VALUES))})\1\s*:\s*|[{{}}]|(?<!\\)\\?\n(?=\S)", re.IGNORECASE
)
_STEPS = re.compile(r"[\w-]+")
_PREFIX = re.compile(r"b?(\\*)(['\"])")
_BARE = re.compile(r"[^\s,;(){}\[\]'\"\\]+")
_NOTHING: Final = frozenset({"null", "none", "true", "false"})


class _Span(NamedTuple):
    """A value of a text."""

    start: int
    end: int
    after: int


class _Entry:
    """A dictionary: whether it names a secret, and its values."""

    def __init__(self) -> None:
        self.is_secret = False
        self.spans: list[_Span] = []


def _mask_named_values(text: str) -> str:
    """Mask `"name": "X-Api-Key", "value": "abc"`, `'loc': ('password',), …, 'input': 'abc'`, in any order."""
    entries, spans, at = [_Entry()], [], 0
    while found := _ENTRY.compiled.search(text, at):
        at = found.end()
        if found["name"] is None:
            if found[0] == "{":
                entries.append(_Entry())
                continue
            ended = entries.pop() if len(entries) > 1 and found[0] == "}" else entries[-1]
            if ended is entries[-1]:
                entries[-1] = _Entry()
            spans += ended.spans if ended.is_secret else []
            continue
        name, entry = found["name"].lower(), entries[-1]
        if name in VALUES and not entry.is_secret and text[at : at + 1] in _CLOSING:
            continue  # what it holds may have names of its own
        value = _read_value(text, at)
        if value is None:
            continue
        if name in VALUES:
            entry.spans.append(value)
        elif any(map(is_step, names_in(name, text[value.start : value.end]))):
            entry.is_secret = True
        at = value.after
    for entry in entries:
        spans += entry.spans if entry.is_secret else []
    return _without(text, spans) if spans else text


def names_in(name: str, value: str) -> Iterator[str]:
    """Yield the names that a value has: the steps of a location, or the last part of a path."""
    if name == "loc":
        yield from _STEPS.findall(value)
    else:
        yield value.rpartition(".")[2] if "." in value else value


def is_step(name: str) -> bool:
    """Return whether a step of a location names a secret."""
    return SECRET_FIELD.fullmatch(name) is not None or SECRET_FIELDS.fullmatch(name) is not None


def _read_value(text: str, at: int) -> _Span | None:
    if text[at : at + 1] in _CLOSING:
        end = _read_container(text, at).end
        return _Span(at, end, end)
    if quoted := _PREFIX.match(text, at):
        end, after = _end_of_string(text, quoted.end(), _Quote(len(quoted[1]), quoted[2]))
        return _Span(quoted.end(), end, after)
    if (bare := _BARE.match(text, at)) and bare[0].lower() not in _NOTHING:
        return _Span(at, bare.end(), bare.end())
    return None


_SHORTEST: Final = 6  # characters of a value; a shorter one is found in every message
_NEAR: Final = 1_000  # characters around a value that may contain it again


def _without(text: str, spans: list[_Span]) -> str:
    pieces, done = [], 0
    for span in sorted(spans):
        if span.start < done or span.start == span.end:
            continue
        value = text[span.start : span.end]
        before, near = text[done : span.start], ""
        if _SHORTEST <= len(value) <= _NEAR:
            before = before[:-_NEAR] + before[-_NEAR:].replace(value, MASK)
            near = text[span.end : span.end + _NEAR]
            if value in near:
                cut = near.rfind(value) + len(value)
                pieces += [before, MASK, near[:cut].replace(value, MASK)]
                done = span.end + cut
                continue
        pieces += [before, MASK]
        done = span.end
    return "".join(pieces) + text[done:]


# ── YAML ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_BLOCK = re.compile(rf"(?P<indent>[ \t]{{0,60}}(?:-[ \t]{{1,9}})?)(['\"]?){TELLING}s?\2:[ \t\r]*", re.IGNORECASE)
_SCALAR = re.compile(
    r"(?P<before>[ \t]*(?:-[ \t]+)*+(?:(['\"]?)(?P<name>[\w.-]{1,100})\2:(?:[ \t]+|\Z))?)(?P<value>.*)"
)
# These name where a secret is kept.
_REFERENCES: Final = frozenset({"name", "key", "type", "kind", "namespace", "optional", "version", "path", "file"})
# - name: DB_PASSWORD
#   value: abc
_NAME_AND_VALUE = LazyPattern(
    rf"(\bname:[ \t]{{1,9}}(['\"]?){TELLING}\2[ \t\r]{{0,9}}\n\s{{0,60}}value:[ \t]{{1,9}})[^\s][^\n]*", re.IGNORECASE
)


def _mask_yaml(text: str) -> str:
    """Mask the lines below `password:` that are indented: `  - abc`, `  prod: abc`."""
    lines = text.split("\n")
    base: int | None = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip(" \t"))
        if base is not None and line.strip():
            if indent > base or (indent == base and line.lstrip().startswith("- ")):
                lines[number] = _mask_scalar(line)
                continue
            base = None
        if base is None and line.rstrip()[-1:] == ":" and (block := _BLOCK.fullmatch(line)):
            base = len(block["indent"])
    return "\n".join(lines)


def _mask_scalar(line: str) -> str:
    found = _SCALAR.fullmatch(line)
    if found is None or (found["name"] or "").lower() in _REFERENCES:
        return line
    value = found["value"].strip()
    is_item = found["name"] is not None or found["before"].strip()
    is_plain = value and (value[0] in "'\"" or not any(map(str.isspace, value))) and value[-1] not in ":({["
    return found["before"] + MASK if is_item and is_plain else line
