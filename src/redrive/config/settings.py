"""`Settings`, and how they are read from arguments, the environment and the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from redrive._internal.database_url import STORE_FORMS, wrong_path
from redrive.config import value_kinds
from redrive.config.discovery import find
from redrive.config.located import ConfigError, ConfigFile, Located, dotted, listed

ALERTS = ("alerts", "channels", "routes", "pipelines", "tables", "conditions", "maintenance", "services")
"""The tables about alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of redrive in a directory."""

    store: str | None = None
    """The store's URL; None for the default, `.redrive/redrive.db`."""
    migrate: bool | None = None
    """Bring an older schema up to date: always, never, or, by None, as `redrive.connect` does."""
    patience: float | None = None
    """Seconds to wait for a database that is busy or restarts."""
    redact: tuple[str, ...] = ()
    """Fields to mask in output."""
    store_redacted: bool = False
    """Mask them in the stored record, too."""
    keep_runs: float | None = None
    """Seconds after their end for which runs are kept; None to keep them."""
    keep_letters: float | None = None
    """Seconds after they were reprocessed or discarded for which letters are kept; None to keep them."""
    result_files: str | None = None
    """The directory that `Flow(files=…)` names, where results are removed with their runs."""
    alerts_on: bool | None = None
    """Whether the environment turns alerts on or off; None to follow the file."""
    alerts: Mapping[str, Located] = field(default_factory=dict)
    """The file's tables about alerts, unchecked; `redrive.alerts.config.read` makes settings of them."""
    file: Path | None = None
    """The file that was read."""


def _keep_text(text: str) -> Any:
    return text


def _parse_switch(text: str) -> Any:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words.get(text.strip().lower())


def _parse_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text  # perhaps a duration


def _parse_list(text: str) -> Any:
    return [entry for entry in text.split(",") if entry.strip()]


class _Key(NamedTuple):
    """One setting: its place in the file, in the environment and in `Settings`."""

    table: str
    name: str
    field: str
    variable: str
    check: Callable[[Located], Any]
    parse: Callable[[str], Any] = _keep_text


_KEYS = (
    _Key("store", "url", "store", "REDRIVE_STORE", value_kinds.text),
    _Key("store", "migrate", "migrate", "REDRIVE_STORE_MIGRATE", value_kinds.switch, _parse_switch),
    _Key(
        *("store", "patience", "patience", "REDRIVE_STORE_PATIENCE"),
        *(partial(value_kinds.duration, zero=True, most=value_kinds.DAY), _parse_number),
    ),
    _Key(
        "letters",
        "redact",
        "redact",
        "REDRIVE_LETTERS_REDACT",
        partial(value_kinds.texts, of="names of fields"),
        _parse_list,
    ),
    _Key(
        "letters",
        "store_redacted",
        "store_redacted",
        "REDRIVE_LETTERS_STORE_REDACTED",
        value_kinds.switch,
        _parse_switch,
    ),
    _Key("retention", "runs", "keep_runs", "REDRIVE_RETENTION_RUNS", value_kinds.age, _parse_number),
    _Key("retention", "letters", "keep_letters", "REDRIVE_RETENTION_LETTERS", value_kinds.age, _parse_number),
    _Key("retention", "files", "result_files", "REDRIVE_RETENTION_FILES", value_kinds.text),
)
_ALERTS_ON = _Key("alerts", "enabled", "alerts_on", "REDRIVE_ALERTS", value_kinds.switch, _parse_switch)
_TABLES: Mapping[str, Mapping[str, _Key]] = {
    table: {key.name: key for key in _KEYS if key.table == table} for table in ("store", "letters", "retention")
}


def load(
    *, environ: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None, **given: Any
) -> Settings:
    """Return the settings of a directory; what is given by name, and is not None, outranks all else.

    The file's tables about alerts are kept unchecked, for `redrive.alerts.config.read`.
    """
    environ = os.environ if environ is None else environ
    file = find(directory, environ)
    settings = _from_environment(environ)
    settings |= {name: value for name, value in given.items() if value is not None}
    if file is not None:
        settings = {**_from_file(file, environ, overruled=settings), **settings, "file": file}
    return Settings(**settings)


class SettingOrigin(NamedTuple):
    """A setting in force, and where it comes from."""

    name: str
    value: Any
    """As it is written: variables by their names, addresses and keys masked."""
    source: str


def origins(
    *, environ: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None
) -> list[SettingOrigin]:
    """Return the settings that were read, each with its variable or its line of the file; defaults are left out."""
    environ = os.environ if environ is None else environ
    file = find(directory, environ)
    by_name: dict[str, SettingOrigin] = {}
    if file is not None:
        by_name = {origin.name: origin for origin in _list_origins(_parse(file, environ))}
    for key in (*_KEYS, _ALERTS_ON):
        if environ.get(key.variable, "").strip():
            name = f"{key.table}.{key.name}"
            by_name[name] = SettingOrigin(name, _mask_value(environ[key.variable], name), key.variable)
    return list(by_name.values())


def _list_origins(at: Located) -> Iterator[SettingOrigin]:
    if isinstance(at.value, dict):
        for inner in at.table().values():
            yield from _list_origins(inner)
    elif isinstance(at.value, list) and any(isinstance(inner, dict) for inner in at.value):
        for entry in at.entries("tables"):
            yield from _list_origins(entry)
    else:
        source, unset = f"{at.source.file}, line {at.line}" if at.source else "", at.unset()
        missing = f" ({listed(unset)} not set)" if unset else ""
        yield SettingOrigin(dotted(at.key), _mask_value(at.value, dotted(at.key)), source + missing)


def _mask_value(value: Any, name: str) -> Any:
    from redrive._internal.masking import mask_all

    is_address = name.startswith("channels.") or name == "alerts.heartbeat"
    if isinstance(value, str) and is_address and not value.startswith("$"):
        return "…"  # an address is a secret
    return mask_all(value)


def beside(file: Path, url: str) -> str:
    """Resolve a relative path of SQLite's or DuckDB's against the file, so that it is the same in every directory."""
    if url.endswith(":memory:"):
        return url
    if "://" not in url:
        return str(file.parent / url)
    scheme, _, path = url.partition(":///")
    if scheme.startswith(("sqlite", "duckdb")) and path and not path.startswith("/"):
        return f"{scheme}:///{file.parent / path}"
    return url


def _from_file(file: Path, environ: Mapping[str, str], *, overruled: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    tables = _parse(file, environ).table((*_TABLES, *ALERTS))
    for table, keys in _TABLES.items():
        located = tables[table].table(keys) if table in tables else {}
        for name, value in located.items():
            settings[keys[name].field] = keys[name].check(value)
    if "store" in settings and "store" not in overruled:
        # Expanded only now: a variable that it names may be missing where another store is given.
        settings["store"] = _store(file, tables["store"].at("url").filled())
    if "result_files" in settings:
        settings["result_files"] = str(file.parent / settings["result_files"])
    return {**settings, "alerts": {name: tables[name] for name in ALERTS if name in tables}}


def _store(file: Path, at: Located) -> str:
    url = value_kinds.text(at)
    resolved = beside(file, url)
    if (wrong := wrong_path(url, STORE_FORMS)) and not os.path.exists(resolved):
        raise at.wrong(f"is not complete: {wrong}")
    return resolved


def _parse(file: Path, environ: Mapping[str, str]) -> Located:
    import tomllib  # most programs have no such file

    raw = b""
    try:
        raw = file.read_bytes()
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
        return Located(tomllib.loads(text), (), ConfigFile(file, text, environ))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}, line {line}: this is not valid TOML: there is a byte that is not UTF-8") from None
    except ValueError as error:
        raise ConfigError(_describe_toml_error(file, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{file} is not valid TOML: it is nested too deeply") from None


def _describe_toml_error(file: Path, text: str, message: str) -> str:
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL)
    if match is None:
        return f"{file} is not valid TOML: {message}"
    line = match[2] or text.rstrip("\n").count("\n") + 1
    return f"{file}, line {line}: this is not valid TOML: {match[1]}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        key.field: key.check(Located(key.parse(environ[key.variable]), (key.variable,)))
        for key in (*_KEYS, _ALERTS_ON)
        if environ.get(key.variable, "").strip()
    }
