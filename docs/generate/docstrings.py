"""Docstrings as they are written here: sentences, lists of names with what each means, and code that is indented."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

_NAMED = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")


@dataclass(slots=True)
class Doc:
    """What a docstring says."""

    first: str = ""
    """Its first paragraph."""
    rest: list[str] = field(default_factory=list)
    """The other paragraphs, code among them in fences."""
    names: dict[str, str] = field(default_factory=dict)
    """What it lists: parameters or fields, by name."""


def read(thing: Any) -> Doc:
    """The docstring of a class, a function or a property."""
    return parse(inspect.getdoc(thing) or "")


def parse(text: str) -> Doc:
    """A docstring in parts."""
    doc = Doc()
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        if listed := _listed(paragraph) or _arguments(paragraph):
            doc.names |= listed
        elif section := re.match(r"(Returns|Raises|Yields):\s", paragraph):
            doc.rest.append(f"{section[1]}: {' '.join(paragraph[section.end() :].split())}")
        elif paragraph.startswith("    "):
            doc.rest.append(f"```py\n{textwrap.dedent(paragraph)}\n```")
        elif not doc.first:
            doc.first = " ".join(paragraph.split())
        else:
            doc.rest.append(" ".join(paragraph.split()))
    return doc


def _listed(paragraph: str) -> dict[str, str]:
    """Names at the margin, with what they mean in a column beside them; empty where it is no such list."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in paragraph.split("\n"):
        if match := _NAMED.fullmatch(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif line.startswith("  ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            return {}
    return found


def _arguments(paragraph: str) -> dict[str, str]:
    """Return the parameters of a section `Args:`, with their meanings; empty for another paragraph."""
    title, _, rest = paragraph.partition("\n")
    if title != "Args:":
        return {}
    found: dict[str, str] = {}
    for line in textwrap.dedent(rest).split("\n"):
        if match := re.fullmatch(r"(\w+): (.+)", line):
            name = match[1]
            found[name] = match[2]
        else:
            found[name] += f" {line.strip()}"
    return found


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a class, or a member of an enumeration, as it stands in the source."""

    name: str
    type: str
    default: str | None
    meaning: str


def fields_of(cls: type) -> list[Field]:
    """The fields of a class in order; what one means is the string below it, or stands in the class's own."""
    listed = read(cls).names
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found = []
    for here, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        name, kind, default = _declared(here)
        if name is None or name.startswith("_"):
            continue
        said = _said(below)
        found.append(Field(name, kind, default, " ".join(said.split()) or listed.get(name, "")))
    return found


def _declared(node: ast.stmt) -> tuple[str | None, str, str | None]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "ClassVar" not in ast.dump(node):
        return node.target.id, ast.unparse(node.annotation), node.value and ast.unparse(node.value)
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, "", ast.unparse(node.value)
    return None, "", None


def _said(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""
