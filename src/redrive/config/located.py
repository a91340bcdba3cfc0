"""A value of `redrive.toml` that knows where it stands, so that whoever cannot use it can say so in one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.config.url_variables import encoder
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.config.lines import Key

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^{}]*)\}|(?P<bare>\w*))", re.ASCII)
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# A longer value may be a key or a token that was put down in the wrong place.
_LONGEST_VALUE = 30
_LONGEST_KEY = 100


class ConfigError(RedriveError):
    """A setting that cannot be used; the sentence names where it stands."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file as it was read."""

    file: Path
    text: str = field(repr=False)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False, compare=False)
    """The variables that its values may name."""


@dataclass(frozen=True, slots=True)
class Located:
    """A value, the key it has, and the file in which that stands; without a file, the key is a variable's name."""

    value: Any = field(repr=False)
    """May be a secret."""
    key: Key = ()
    source: ConfigFile | None = None
    taken_from: tuple[str, ...] = ()
    """The variables that were put into the value."""

    def wrong(self, says: str) -> ConfigError:
        """The error about this value: "must be …", "names an unknown …". Never has the value of a secret in it."""
        from redrive._internal.masking import mask  # loaded only where something is wrong

        name = dotted(self.key)
        if self.taken_from:
            name += f", with the value of {listed(self.taken_from)},"
        if self.source is None:
            return ConfigError(f"{name} {mask(says)}")
        return ConfigError(f"{self.source.file}, line {self.line}: {name} {mask(says)}")

    def at(self, name: str | int) -> Located:
        """What stands below it under a name, or at a place of a list."""
        return Located(self.value[name], (*self.key, name), self.source)

    def table(self, known: Collection[str] | None = None, *, called: str = "") -> dict[str, Located]:
        """What it holds as a table, by name; a name that is not known is refused, and so is whatever is no table."""
        if not isinstance(self.value, dict):
            what = "a list" if isinstance(self.value, list) else "a single value"
            raise self.wrong(f"must be a table, [{dotted(self.key)}], not {what}")
        found = {name: self.at(name) for name in self.value}
        for name, one in found.items():
            if known is not None and name not in known:
                raise one.wrong(f"{called or 'means nothing here'}; {self._hint(name, known)}")
        return found

    def entries(self, of: str) -> list[Located]:
        """What it holds as a list, one by one."""
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list of {of}")
        return [self.at(place) for place in range(len(self.value))]

    def unset(self) -> tuple[str, ...]:
        """The variables it names that have no value."""
        environ = {} if self.source is None else self.source.environ
        return tuple(name for name in self._variables() if not environ.get(name, "").strip())

    def filled(self, *, advice: str = "set it") -> Located:
        """The same with the values of the variables that it names: `$NAME`, `${NAME}`, and `$$` for a dollar sign.

        Within a URL, a value is encoded as the part needs that it stands in.
        """
        if self.source is None or not isinstance(self.value, str):
            return self
        names, environ = self._variables(), self.source.environ
        if missing := self.unset():
            raise self.wrong(f"names the variable {missing[0]}, which is not set; {advice}")
        template = self.value

        def fill(found: re.Match[str]) -> str:
            if found["dollar"]:
                return "$"
            return encoder(template, *found.span())(environ[found["braced"] or found["bare"]].strip())

        text = _VARIABLE.sub(fill, template)
        return replace(self, value=text, taken_from=names)

    def _variables(self) -> tuple[str, ...]:
        if not isinstance(self.value, str):
            return ()
        found = [one["braced"] or one["bare"] or "" for one in _VARIABLE.finditer(self.value) if not one["dollar"]]
        if not all(_VARIABLE_NAME.fullmatch(name) for name in found):
            raise self.wrong("has a $ that names no variable; write $NAME, or $$ for a dollar sign")
        return tuple(dict.fromkeys(found))

    def _hint(self, name: str, known: Collection[str]) -> str:
        near = nearest(name, known)
        if near is not None:
            return f"did you mean {near!r}?"
        if not self.key:
            return f"there are {listed(f'[{one}]' for one in known)}"
        return f"{dotted(self.key)} has {listed(known)}"

    @property
    def line(self) -> int:
        """The line of the file on which it stands."""
        if self.source is None:
            return 1
        from redrive.config.lines import lines

        found = lines(self.source.text)
        return next((found[key] for end in range(len(self.key), 0, -1) if (key := self.key[:end]) in found), 1)


def dotted(key: Key) -> str:
    """A key as a person writes it: alerts.quiet.zone, channels.'on call'.slack, tables[0].url."""
    said = ""
    for part in key:
        if isinstance(part, int):
            said += f"[{part}]"
        else:
            said += ("." if said else "") + (part if _BARE.fullmatch(part) else shown(part, longest=_LONGEST_KEY))
    return said


def shown(value: object, *, longest: int = _LONGEST_VALUE) -> str:
    """A value that should have been a name, fit to be seen: an address or a key in its place stays hidden."""
    from redrive._internal.masking import mask

    if not isinstance(value, str) or len(value) > longest or "://" in value:
        return "…"
    return mask(repr(value))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    import difflib

    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1)
    return names[found[0]] if found else None


def listed(names: Iterable[str], *, last: str = "and") -> str:
    """Names as a sentence has them: a, b and c."""
    *others, end = names
    return f"{', '.join(others)} {last} {end}" if others else end
