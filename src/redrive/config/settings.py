"""Where settings come from: arguments, the environment, the file, and who wins."""

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
    keep_runs: float | None = None
    """Seconds after their end for which runs are kept; None for ever."""
    keep_letters: float | None = None
    """Seconds after they were reprocessed or discarded for which letters are kept; None for ever."""
    result_files: str | None = None
    """The directory that `Flow(files=…)` names, where results go with their runs."""
    alerts_on: bool | None = None
    """What the environment says of alerts; None where it says nothing, and the file counts."""
    alerts: Mapping[str, Located] = field(default_factory=dict)
    """The file's tables about alerts, as they stand there; `redrive.alerts.config.read` makes settings of them."""
    file: Path | None = None
    """The file that was read."""


def _as_written(text: str) -> Any:
    return text


def _as_switch(text: str) -> Any:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words.get(text.strip().lower())


def _as_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text  # perhaps a span


def _as_list(text: str) -> Any:
    return [one for one in text.split(",") if one.strip()]


class _Key(NamedTuple):
    """One setting: where it stands in the file, in the environment and in `Settings`."""

    table: str
    name: str
    field: str
    variable: str
    check: Callable[[Located], Any]
    parse: Callable[[str], Any] = _as_written


_KEYS = (
    _Key("store", "url", "store", "REDRIVE_STORE", value_kinds.text),
    _Key("store", "migrate", "migrate", "REDRIVE_STORE_MIGRATE", value_kinds.switch, _as_switch),
    _Key(
        *("store", "patience", "patience", "REDRIVE_STORE_PATIENCE"),
        *(partial(value_kinds.duration, zero=True, most=value_kinds.DAY), _as_number),
    ),
    _Key(
        "letters",
        "redact",
        "redact",
        "REDRIVE_LETTERS_REDACT",
        partial(value_kinds.texts, of="names of fields"),
        _as_list,
    ),
    _Key(
        "letters", "store_redacted", "store_redacted", "REDRIVE_LETTERS_STORE_REDACTED", value_kinds.switch, _as_switch
    ),
    _Key("retention", "runs", "keep_runs", "REDRIVE_RETENTION_RUNS", value_kinds.age, _as_number),
    _Key("retention", "letters", "keep_letters", "REDRIVE_RETENTION_LETTERS", value_kinds.age, _as_number),
    _Key("retention", "files", "result_files", "REDRIVE_RETENTION_FILES", value_kinds.text),
)
_ALERTS_ON = _Key("alerts", "enabled", "alerts_on", "REDRIVE_ALERTS", value_kinds.switch, _as_switch)
_TABLES: Mapping[str, Mapping[str, _Key]] = {
    table: {key.name: key for key in _KEYS if key.table == table} for table in ("store", "letters", "retention")
}


def load(
    *, environ: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None, **given: Any
) -> Settings:
    """The settings that hold in a directory; what is given by name, and is not None, holds before all else.

    What the file says of alerts is kept for `redrive.alerts.config.read`.
    """
    environ = os.environ if environ is None else environ
    file = find(directory, environ)
    found = _from_environment(environ)
    found |= {name: value for name, value in given.items() if value is not None}
    if file is not None:
        found = {**_from_file(file, environ, overruled=found), **found, "file": file}
    return Settings(**found)


class SettingOrigin(NamedTuple):
    """A setting as it holds, and where it comes from."""

    name: str
    value: Any
    """As it is written: a variable by its name, an address or a key not at all."""
    source: str


def origins(
    *, environ: Mapping[str, str] | None = None, directory: str | os.PathLike[str] | None = None
) -> list[SettingOrigin]:
    """What was read, and from where: a variable, or a line of the file. What has its default is left out."""
    environ = os.environ if environ is None else environ
    file = find(directory, environ)
    found: dict[str, SettingOrigin] = {}
    if file is not None:
        found = {one.name: one for one in _leaves(_parsed(file, environ))}
    for key in (*_KEYS, _ALERTS_ON):
        if environ.get(key.variable, "").strip():
            name = f"{key.table}.{key.name}"
            found[name] = SettingOrigin(name, _as_may_be_shown(environ[key.variable], name), key.variable)
    return list(found.values())


def _leaves(at: Located) -> Iterator[SettingOrigin]:
    if isinstance(at.value, dict):
        for one in at.table().values():
            yield from _leaves(one)
    elif isinstance(at.value, list) and any(isinstance(inner, dict) for inner in at.value):
        for one in at.entries("tables"):
            yield from _leaves(one)
    else:
        source, unset = f"{at.source.file}, line {at.line}" if at.source else "", at.unset()
        missing = f" ({listed(unset)} not set)" if unset else ""
        yield SettingOrigin(dotted(at.key), _as_may_be_shown(at.value, dotted(at.key)), source + missing)


def _as_may_be_shown(value: Any, name: str) -> Any:
    from redrive._internal.masking import mask_all

    is_address = name.startswith("channels.") or name == "alerts.heartbeat"
    if isinstance(value, str) and is_address and not value.startswith("$"):
        return "…"  # an address is a secret
    return mask_all(value)


def beside(file: Path, url: str) -> str:
    """A relative path of SQLite's or DuckDB's means the same from every directory below the file."""
    if url.endswith(":memory:"):
        return url
    if "://" not in url:
        return str(file.parent / url)
    scheme, _, path = url.partition(":///")
    if scheme.startswith(("sqlite", "duckdb")) and path and not path.startswith("/"):
        return f"{scheme}:///{file.parent / path}"
    return url


def _from_file(file: Path, environ: Mapping[str, str], *, overruled: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tables = _parsed(file, environ).table((*_TABLES, *ALERTS))
    for table, keys in _TABLES.items():
        located = tables[table].table(keys) if table in tables else {}
        for name, one in located.items():
            found[keys[name].field] = keys[name].check(one)
    if "store" in found and "store" not in overruled:
        # Only now: a variable that it names may well be missing where another store is given.
        found["store"] = _store(file, tables["store"].at("url").filled())
    if "result_files" in found:
        found["result_files"] = str(file.parent / found["result_files"])
    return {**found, "alerts": {name: tables[name] for name in ALERTS if name in tables}}


def _store(file: Path, at: Located) -> str:
    url = value_kinds.text(at)
    whole = beside(file, url)
    if (wrong := wrong_path(url, STORE_FORMS)) and not os.path.exists(whole):
        raise at.wrong(f"is not complete: {wrong}")
    return whole


def _parsed(file: Path, environ: Mapping[str, str]) -> Located:
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
        raise ConfigError(_no_toml(file, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{file} is not valid TOML: it is nested too deeply") from None


def _no_toml(file: Path, text: str, said: str) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", said, re.DOTALL)
    if found is None:
        return f"{file} is not valid TOML: {said}"
    line = found[2] or text.rstrip("\n").count("\n") + 1
    return f"{file}, line {line}: this is not valid TOML: {found[1]}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        key.field: key.check(Located(key.parse(environ[key.variable]), (key.variable,)))
        for key in (*_KEYS, _ALERTS_ON)
        if environ.get(key.variable, "").strip()
    }
