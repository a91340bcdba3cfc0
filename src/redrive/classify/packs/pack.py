"""The form of a pack: what the errors of one client library mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redrive.classify.tables.entry import Entry

Texts = tuple[tuple[str, Entry], ...]
"""Patterns, searched in a message without regard to case; the first one found decides."""


class Codes(NamedTuple):
    """The codes that errors of a class carry."""

    carrier: str
    """`library.Class`; its subclasses carry them, too."""
    attribute: str
    """Where the code is: attributes, keys and positions from the error on, as in `code` or `args.0.full_code`.

    `*` is the first value of a mapping, which represents all.
    """
    table: Mapping[Any, Entry]
    """What each code means; for the others the class decides."""
    patterns: Mapping[Any, Texts] = {}
    """Codes that mean several things: the first pattern found in the message decides, else the table."""


class Pack(NamedTuple):
    """What the errors of one library mean."""

    library: str
    """The first part of its module's name."""
    types: Mapping[str, Entry] = {}
    """By `Class`; the nearest class of an error decides."""
    codes: tuple[Codes, ...] = ()
    """By the codes that errors carry; codes outrank the class."""
    texts: Mapping[str, Texts] = {}
    """By `Class`, for errors without a code: their messages outrank the class."""
    opens: Mapping[str, str] = {}
    """By `Class`: the attribute with the error, or with one error per host, that this class only reports."""
    wraps: bool = False
    """Whether its errors carry the underlying error as their cause, so that a bad certificate is found there."""
