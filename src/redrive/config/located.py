"""`Located`: a value of `redrive.toml` with its key and line, so that a wrong value is reported in one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.config.lines import Key


# Characters that need no encoding; `%` is kept, since users had to percent-encode values by hand in earlier versions.
_IN_USERINFO = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
_IN_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$'()*,;:@/?-]|%[0-9A-Fa-f]{2})*")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}://([^/?#]*)")


def encoder(template: str, start: int, end: int) -> Callable[[str], str]:
    """Return how to encode the value of a variable at this position of a URL; other texts are not encoded."""
    url = _AUTHORITY.match(template)
    if url is None or start < url.start(1):
        return str
    userinfo_end = template.rfind("@", *url.span(1))
    if start < userinfo_end:
        is_all = (start, end) == (url.start(1), userinfo_end)
        return _encode_credentials if is_all else _encode_userinfo
    if "?" in template[url.end(1) : start] and template[start - 1] not in "?&":
        return _encode_query
    return str


def _encode_userinfo(value: str) -> str:
    return value if _IN_USERINFO.fullmatch(value) else quote(value, safe="")


def _encode_credentials(value: str) -> str:
    """Encode `user:password` in one variable."""
    user, colon, password = value.partition(":")
    return _encode_userinfo(user) + colon + _encode_userinfo(password)


def _encode_query(value: str) -> str:
    return value if _IN_QUERY.fullmatch(value) else quote(value, safe="")


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>[^{}]*)\}|(?P<bare>\w*))", re.ASCII)
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# A longer value may be a key or a token in the wrong place.
_LONGEST_VALUE = 30
_LONGEST_KEY = 100


class ConfigError(RedriveError):
    """A setting that cannot be used; the message names its file, line and key."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file as it was read."""

    file: Path
    text: str = field(repr=False)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False, compare=False)
    """The variables that its values may name."""


@dataclass(frozen=True, slots=True)
class Located:
    """A value, its key, and the file it is from; without a file, the key is the name of a variable."""

    value: Any = field(repr=False)
    """May be a secret."""
    key: Key = ()
    source: ConfigFile | None = None
    taken_from: tuple[str, ...] = ()
    """The variables that were put into the value."""

    def wrong(self, says: str) -> ConfigError:
        """Return the error about this value: "must be …", "names an unknown …". A secret value must not be in it."""
        from redrive._internal.masking import mask  # loaded only where something is wrong

        name = dotted(self.key)
        if self.taken_from:
            name += f", with the value of {listed(self.taken_from)},"
        if self.source is None:
            return ConfigError(f"{name} {mask(says)}")
        return ConfigError(f"{self.source.file}, line {self.line}: {name} {mask(says)}")

    def at(self, name: str | int) -> Located:
        """Return the value under a name, or at a position of a list."""
        return Located(self.value[name], (*self.key, name), self.source)

    def table(self, known: Collection[str] | None = None, *, called: str = "") -> dict[str, Located]:
        """Return the entries of a table by name.

        Args:
            known: the names that are allowed; None for all.
            called: what to report of a name that is not known.

        Raises:
            ConfigError: the value is not a table, or a name in it is not known.
        """
        if not isinstance(self.value, dict):
            what = "a list" if isinstance(self.value, list) else "a single value"
            raise self.wrong(f"must be a table, [{dotted(self.key)}], not {what}")
        entries = {name: self.at(name) for name in self.value}
        for name, entry in entries.items():
            if known is not None and name not in known:
                raise entry.wrong(f"{called or 'is not a setting'}; {self._hint(name, known)}")
        return entries

    def entries(self, of: str) -> list[Located]:
        """Return the entries of a list."""
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list of {of}")
        return [self.at(position) for position in range(len(self.value))]

    def unset(self) -> tuple[str, ...]:
        """Return the variables it names that have no value."""
        environ = {} if self.source is None else self.source.environ
        return tuple(name for name in self._variables() if not environ.get(name, "").strip())

    def filled(self, *, advice: str = "set it") -> Located:
        """Return the same value with its variables filled in: `$NAME`, `${NAME}`, and `$$` for a dollar sign.

        Within a URL, a value is encoded as its part of the URL requires.
        """
        if self.source is None or not isinstance(self.value, str):
            return self
        names, environ = self._variables(), self.source.environ
        if missing := self.unset():
            raise self.wrong(f"names the variable {missing[0]}, which is not set; {advice}")
        template = self.value

        def fill(variable: re.Match[str]) -> str:
            if variable["dollar"]:
                return "$"
            return encoder(template, *variable.span())(environ[variable["braced"] or variable["bare"]].strip())

        text = _VARIABLE.sub(fill, template)
        self._keep_secret(text)
        return replace(self, value=text, taken_from=names)

    def _keep_secret(self, text: str) -> None:
        """Have the password of a URL, and the keys in the address of a channel, masked in every text."""
        is_address = self.key[:1] == ("channels",) or self.key == ("alerts", "heartbeat")
        if is_address or "://" in text or "=" in text:
            from redrive._internal import masking  # not loaded by a program whose settings have no address

            (masking.learn_address if is_address else masking.learn_url)(text)

    def _variables(self) -> tuple[str, ...]:
        if not isinstance(self.value, str):
            return ()
        matches = [match for match in _VARIABLE.finditer(self.value) if not match["dollar"]]
        names = [match["braced"] or match["bare"] or "" for match in matches]
        if not all(_VARIABLE_NAME.fullmatch(name) for name in names):
            raise self.wrong("has a $ that names no variable; write $NAME, or $$ for a dollar sign")
        return tuple(dict.fromkeys(names))

    def _hint(self, name: str, known: Collection[str]) -> str:
        near = nearest(name, known)
        if near is not None:
            return f"did you mean {near!r}?"
        if not self.key:
            return f"there are {listed(f'[{name}]' for name in known)}"
        return f"{dotted(self.key)} has {listed(known)}"

    @property
    def line(self) -> int:
        """Return the line of the file on which the value is."""
        if self.source is None:
            return 1
        from redrive.config.lines import lines

        line_of = lines(self.source.text)
        return next((line_of[key] for end in range(len(self.key), 0, -1) if (key := self.key[:end]) in line_of), 1)


def dotted(key: Key) -> str:
    """Return a key as users write it: alerts.quiet.zone, channels.'on call'.slack, tables[0].url."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else shown(part, longest=_LONGEST_KEY))
    return text


def shown(value: object, *, longest: int = _LONGEST_VALUE) -> str:
    """Quote a value that should have been a name; an address or a key in its place stays hidden."""
    from redrive._internal.masking import mask

    if not isinstance(value, str) or len(value) > longest or "://" in value:
        return "…"
    return mask(repr(value))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant; None where no name is similar."""
    import difflib

    names = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(name.lower(), names, n=1)
    return names[matches[0]] if matches else None


def listed(names: Iterable[str], *, last: str = "and") -> str:
    """Join names as a sentence has them: a, b and c."""
    *others, end = names
    return f"{', '.join(others)} {last} {end}" if others else end
