"""The form of a pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redrive.classify.tables.entry import Entry


class Codes(NamedTuple):
    """The codes that errors of a class carry."""

    carrier: str
    """`library.Class`; its subclasses carry them, too."""
    attribute: str
    """Where the code is: the name of an attribute, or `args.0`."""
    table: Mapping[Any, Entry]
    """What each code means; for the others the class decides."""


class Pack(NamedTuple):
    """What the errors of one library mean."""

    library: str
    """The first part of its module's name."""
    types: Mapping[str, Entry] = {}
    """By `Class`; the nearest class of an error decides."""
    codes: tuple[Codes, ...] = ()
    """They outrank the class."""
    wraps: bool = False
    """Whether its errors carry the one below as their cause, so that a bad certificate is found there."""
