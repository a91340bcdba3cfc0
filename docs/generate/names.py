"""The pages about names: what each is, its signature, its parameters, fields and methods."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import types_shown
from docstrings import Doc, fields_of, read
from plan import Entry, Page, slug
from words import FIELDS, WORDS

WIDTH = 100

# Nobody has to look behind these: a user makes them by a function that is listed, and hands them on.
OPAQUE = {
    *(
        "Source",
        "Sink",
        "CsvSource",
        "Ndjson",
        "Pages",
        "Parquet",
        "ParquetDataset",
        "PerFrame",
        "Query",
        "Records",
        "FrameRecords",
        "ArrowStream",
    ),
    *(
        "ServiceTransport",
        "ServiceAdapter",
        "HasSharedState",
        "HasDeadLetters",
        "CallTarget",
        "Clock",
        "Random",
        "Rule",
        "RetryOptions",
        "_TestingMode",
    ),
}


class Row(NamedTuple):
    """A parameter or a field."""

    name: str
    type: str
    default: str | None
    meaning: str


class Reference:
    """All pages, with links between them. What nobody has written down is `missing`."""

    def __init__(self, pages: list[Page]) -> None:
        self.pages = pages
        self.missing: list[str] = []

    @cached_property
    def _links(self) -> dict[Any, str]:
        return {entry.thing: f"{page.file}#{entry.anchor}" for page in self.pages for entry in page.entries}

    @cached_property
    def _named(self) -> dict[str, str]:
        """Where a name leads that a docstring mentions."""
        found = {}
        for page in self.pages:
            for entry in page.entries:
                found[entry.title] = found[entry.title.rpartition(".")[2]] = self._links[entry.thing]
        return found

    def text(self, page: Page) -> str:
        """One page."""
        parts = [f"# {page.title}", self._linked(page.intro)]
        for entry in page.entries:
            parts += self._entry(entry)
        anchors = Counter(slug(part.lstrip("# ")) for part in parts if part.startswith("#"))
        self.missing += [f"{page.file} has the heading {one} twice" for one, count in anchors.items() if count > 1]
        return "\n\n".join(parts) + "\n"

    def index(self) -> Iterator[str]:
        """A line for each name, page by page."""
        for page in self.pages:
            yield f"## [{page.title}]({page.file})"
            lines = ["| name | |", "|---|---|"]
            for entry in page.entries:
                meaning = self._linked(_first_sentence(read(entry.thing)))
                lines.append(f"| [`{entry.title}`]({self._links[entry.thing]}) | {meaning} |")
            yield "\n".join(lines)

    # ── one name ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _entry(self, entry: Entry) -> Iterator[str]:
        yield f"## `{entry.title}` {entry.what}".rstrip()
        if isinstance(entry.thing, FunctionType):
            yield from self._function(entry.title, entry.thing)
            return
        yield from self._class(entry)
        for name, method in _in_order(_methods(entry), entry.first):
            yield f"### `{entry.title.removeprefix('redrive.')}.{name}`"
            yield from self._function(f"{entry.title.removeprefix('redrive.')}.{name}", method)

    def _class(self, entry: Entry) -> Iterator[str]:
        cls, doc = entry.thing, self._doc(entry.thing, entry.title)
        where, module = types_shown.home_of(cls), cls.__module__
        if issubclass(cls, BaseException):
            yield self._linked(f"A `{cls.__mro__[1].__name__}`.")
        elif not entry.title.startswith(("redrive.", "store.")):
            yield f"`{module}.{cls.__name__}`"
        if entry.made and _is_made(cls):
            signature = inspect.signature(cls)
            doc.names |= {one.name: one.meaning for one in fields_of(cls) if one.meaning} if is_dataclass(cls) else {}
            yield _code(entry.title, signature)
            yield from self._sentences(doc)
            yield from self._table("parameter", self._parameters(entry.title, signature, doc, where))
            yield from self._table("attribute", self._properties(entry))
        else:
            yield from self._sentences(doc)
            what = "member" if issubclass(cls, Enum) else "field" if is_dataclass(cls) else "attribute"
            yield from self._table(what, [*self._fields(entry, doc), *self._properties(entry)])

    def _function(self, title: str, function: Any) -> Iterator[str]:
        doc, signature = self._doc(function, title), inspect.signature(function)
        yield _code(title, signature)
        yield from self._sentences(doc)
        yield from self._table(
            "parameter", self._parameters(title, signature, doc, types_shown.home_of(inspect.unwrap(function)))
        )
        answer = str(signature.return_annotation)
        if signature.return_annotation is not inspect.Signature.empty and answer not in {"None", "Self", "R"}:
            yield f"Returns {self._type(title, answer, types_shown.home_of(function))}."

    def _doc(self, thing: Any, title: str) -> Doc:
        doc = read(thing)
        if referred := re.search(r"See `(\w+)` for what the arguments mean", doc.first):
            doc.names |= next(read(one).names for one in self._links if one.__name__ == referred[1])
        if not doc.first or (is_dataclass(thing) and doc.first.startswith(f"{getattr(thing, '__name__', '')}(")):
            self.missing.append(f"{title} has no docstring")
        return doc

    def _sentences(self, doc: Doc) -> Iterator[str]:
        yield from (one if one.startswith("```") else self._linked(one) for one in (doc.first, *doc.rest))

    # ── its parameters and fields ─────────────────────────────────────────────────────────────────────────────────────

    def _parameters(self, title: str, signature: inspect.Signature, doc: Doc, where: ModuleType) -> Iterator[Row]:
        said = f"{doc.first} {' '.join(doc.rest)}"
        for one in signature.parameters.values():
            if one.name in {"self", "cls"} or one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD}:
                continue  # what else it takes, the sentences say
            meaning = doc.names.get(one.name) or ("" if f"`{one.name}`" in said else WORDS.get(one.name, ""))
            if not meaning and f"`{one.name}`" not in said:
                self.missing.append(f"{title} does not say what {one.name} is")
            default = None if one.default is one.empty else types_shown.shown(one.default)
            yield Row(one.name, self._type(title, str(one.annotation), where), default, meaning)

    def _fields(self, entry: Entry, doc: Doc) -> Iterator[Row]:
        cls = entry.thing
        if not is_dataclass(cls) and not issubclass(cls, Enum):
            yield from (Row(name, "", None, meaning) for name, meaning in doc.names.items())
            return
        for one in fields_of(cls):
            meaning = one.meaning or ("" if issubclass(cls, Enum) else (WORDS | FIELDS).get(one.name, ""))
            if not meaning:
                self.missing.append(f"{entry.title} does not say what {one.name} is")
            kind = self._type(entry.title, one.type, types_shown.home_of(cls)) if one.type else ""
            yield Row(one.name, kind, one.default if issubclass(cls, Enum) else None, meaning)

    def _properties(self, entry: Entry) -> Iterator[Row]:
        where = types_shown.home_of(entry.thing)
        for name, value in vars(entry.thing).items():
            if isinstance(value, property) and not name.startswith("_") and entry.only is None:
                answer = inspect.signature(value.fget).return_annotation if value.fget else ""
                yield Row(
                    name, self._type(entry.title, str(answer), where), None, read(value).first.removeprefix("Return ")
                )

    def _table(self, what: str, rows: Iterable[Row]) -> Iterator[str]:
        found = list(rows)
        if not found:
            return
        columns = [what, *(["type"] if any(row.type for row in found) else []), ""]
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in found:
            name = f"`{row.name}`" if what != "member" else f"`{types_shown.quoted(row.default or '')}`"
            cells = [name, *([row.type] if len(columns) == 3 else []), self._linked(_in_a_table(row.meaning))]
            lines.append(f"| {' | '.join(cells)} |")
        yield "\n".join(lines)

    def _type(self, title: str, annotation: str, where: ModuleType) -> str:
        """A type in words, each name that has an entry with a link to it."""
        shown = []
        for part, module in types_shown.alternatives(annotation, where):
            text = f"`{types_shown.quoted(_unqualified(part)).replace(' | ', ' or ')}`"
            for cls in types_shown.words_of(part, module):
                if cls in self._links:
                    text = f"[{text}]({self._links[cls]})"
                    break
                if cls.__module__.startswith("redrive") and cls.__name__ not in OPAQUE:
                    self.missing.append(f"{title} names {cls.__module__}.{cls.__name__}, which has no entry")
            shown.append(text)
        return " or ".join(dict.fromkeys(shown))

    def _linked(self, text: str) -> str:
        """A sentence in which the names that have entries lead to them."""

        def link(found: re.Match[str]) -> str:
            target = self._named.get(found[1].rpartition(".")[2] if found[1].startswith("redrive.") else found[1])
            return f"[`{found[1]}`]({target})" if target else found[0]

        return re.sub(r"(?<!\[)`([\w.]+)`(?!\])", link, text)


def _methods(entry: Entry) -> Iterator[tuple[str, Any]]:
    parts = [base for base in entry.thing.__mro__ if base.__module__.startswith("redrive.")]
    if issubclass(entry.thing, BaseException):
        parts = [entry.thing]
    for name, value in [one for part in parts for one in vars(part).items()]:
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        wanted = name in entry.only if entry.only is not None else name not in entry.without
        if isinstance(function, FunctionType) and not name.startswith("_") and wanted:
            yield name, function


def _in_order(methods: Iterable[tuple[str, Any]], first: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the methods, those of `first` before the others."""
    order = {name: place for place, name in enumerate(first)}
    return sorted(methods, key=lambda method: order.get(method[0], len(order)))


def _is_made(cls: type) -> bool:
    """Whether a user makes it by calling it with something."""
    if issubclass(cls, Enum):
        return False
    return "__init__" in {
        name for base in cls.__mro__[:-1] if base.__module__.startswith("redrive") for name in vars(base)
    }


def _code(title: str, signature: inspect.Signature) -> str:
    """How it is called, without types: those stand in the table."""
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    said = []
    star = slash = False
    for one in (one for one in parameters if one.name != "self"):
        if slash and one.kind is not one.POSITIONAL_ONLY:
            said.append("/")
            slash = False
        if one.kind is one.KEYWORD_ONLY and not star:
            said.append("*")
        slash = slash or one.kind is one.POSITIONAL_ONLY
        star = star or one.kind in {one.KEYWORD_ONLY, one.VAR_POSITIONAL}
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        said.append(prefix + one.name + ("" if one.default is one.empty else f"={types_shown.shown(one.default)}"))
    line = f"{title}({', '.join(said)})"
    if len(line) > WIDTH:
        line = f"{title}(\n" + "".join(f"    {one},\n" for one in said) + ")"
    return f"```py\n{line}\n```"


def _first_sentence(doc: Doc) -> str:
    return re.split(r"(?<=[.:;]) ", doc.first)[0].rstrip(":;.")


def _in_a_table(meaning: str) -> str:
    """A phrase, as those of a list are: without a capital and a full stop, unless it is more than one sentence."""
    if re.search(r"\. [A-Z]", meaning):
        return meaning
    is_name = re.match(r"(None|True|False|[A-Z_]{2,})\b", meaning)
    return meaning.removesuffix(".") if is_name else meaning[:1].lower() + meaning[1:].removesuffix(".")


def _unqualified(text: str) -> str:
    """A type without the modules it comes from."""
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text)
