"""`redrive.toml` and `REDRIVE_*`: one frozen `Settings`.

What is said by argument wins over the environment, that over the file, and that over the default. The file is the first
`redrive.toml` in the working directory or one of its parents:

    [store]
    url = "postgresql://redrive@db/prod"    # REDRIVE_STORE; a path of SQLite's is relative to this file
    migrate = false                         # REDRIVE_STORE_MIGRATE
    patience = 30                           # REDRIVE_STORE_PATIENCE, in seconds

    [letters]
    redact = ["card_number", "*.ssn"]       # REDRIVE_LETTERS_REDACT, with commas between
    store_redacted = false                  # REDRIVE_LETTERS_STORE_REDACTED
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from redrive.errors import RedriveError

FILE = "redrive.toml"


class ConfigError(RedriveError):
    """A setting that cannot be used; the sentence names where it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How redrive is set up here."""

    store: str | None = None
    """The store's URL; None for the default, `.redrive/redrive.db`."""
    migrate: bool | None = None
    """Bring an older schema up to date: always, never, or, by None, as `redrive.connect` does."""
    patience: float | None = None
    """Seconds for which a database that is busy or restarts is waited for."""
    redact: tuple[str, ...] = ()
    """Fields to mask in what people see."""
    store_redacted: bool = False
    """Mask them in the stored record, too."""
    file: Path | None = None
    """The file that was read."""


class _Wrong(Exception):
    """What a value should have been."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong("a text")
    return value.strip()


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("true or false")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 86_400:
        raise _Wrong("a number of seconds from 0 to 86400")
    return float(value)


def _fields(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise _Wrong("a list of names of fields")
    return tuple(one.strip() for one in value)


def _as_written(text: str) -> Any:
    return text


def _as_switch(text: str) -> Any:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words.get(text.strip().lower())


def _as_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return None


def _as_list(text: str) -> Any:
    return [one for one in text.split(",") if one.strip()]


class _Key(NamedTuple):
    """One setting: where it stands in the file, in the environment and in `Settings`."""

    table: str
    name: str
    field: str
    variable: str
    check: Callable[[Any], Any]
    parse: Callable[[str], Any] = _as_written


_KEYS = (
    _Key("store", "url", "store", "REDRIVE_STORE", _text),
    _Key("store", "migrate", "migrate", "REDRIVE_STORE_MIGRATE", _switch, _as_switch),
    _Key("store", "patience", "patience", "REDRIVE_STORE_PATIENCE", _seconds, _as_number),
    _Key("letters", "redact", "redact", "REDRIVE_LETTERS_REDACT", _fields, _as_list),
    _Key("letters", "store_redacted", "store_redacted", "REDRIVE_LETTERS_STORE_REDACTED", _switch, _as_switch),
)
_TABLES: Mapping[str, Mapping[str, _Key]] = {
    table: {key.name: key for key in _KEYS if key.table == table} for table in ("store", "letters")
}


def load(
    *, environ: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None, **given: Any
) -> Settings:
    """The settings that hold in a directory; what is given by name, and is not None, holds before all else."""
    file = find(directory)
    found = {} if file is None else _from_file(file)
    found |= _from_environment(os.environ if environ is None else environ)
    found |= {name: value for name, value in given.items() if value is not None}
    return Settings(**found, file=file)


def find(directory: str | os.PathLike[str] | None = None) -> Path | None:
    """The file that holds in a directory, if there is one."""
    try:
        here = Path.cwd() if directory is None else Path(directory).absolute()
    except FileNotFoundError:  # the directory was removed under us
        return None
    # os.path.isfile says no where a parent may not be looked into; pathlib would raise.
    return next((place / FILE for place in (here, *here.parents) if os.path.isfile(place / FILE)), None)


def _from_file(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table, content in _parsed(file).items():
        if table not in _TABLES:
            raise ConfigError(f"{file} has [{table}], which means nothing here; there are {_listed(_TABLES)}")
        if not isinstance(content, dict):
            raise ConfigError(f"{file}: {table} must be a table, [{table}], not a single value")
        for name, value in content.items():
            key = _TABLES[table].get(name)
            if key is None:
                raise ConfigError(f"{file} has {table}.{name}, which means nothing here; [{table}] has {_names(table)}")
            found[key.field] = _checked(key, value, f"{file}: {table}.{name}")
    if "store" in found:
        found["store"] = _beside(file, found["store"])
    return found


def _parsed(file: Path) -> dict[str, Any]:
    import tomllib  # most programs have no such file

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        key.field: _checked(key, key.parse(environ[key.variable]), key.variable)
        for key in _KEYS
        if environ.get(key.variable, "").strip()
    }


def _checked(key: _Key, value: Any, where: str) -> Any:
    try:
        return key.check(value)
    except _Wrong as wrong:
        # Not the value itself: a URL has a password in it.
        raise ConfigError(f"{where} must be {wrong}") from None


def _beside(file: Path, url: str) -> str:
    """A relative path of SQLite's means the same from every directory below the file."""
    if "://" not in url:
        return str(file.parent / url)
    scheme, _, path = url.partition(":///")
    if scheme.startswith("sqlite") and path and not path.startswith("/"):
        return f"{scheme}:///{file.parent / path}"
    return url


def _listed(tables: Mapping[str, object]) -> str:
    return " and ".join(f"[{table}]" for table in tables)


def _names(table: str) -> str:
    return ", ".join(_TABLES[table])
