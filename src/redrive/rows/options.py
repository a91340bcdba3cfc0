"""The options of a pipeline's runs: passed to the run and its writer, and compared with those of the checkpoint.

Rows before a checkpoint were read and written with the options of their time. With others, rows would be missing or
written in two ways, and nothing would show it. What an operator changes to repair a run is not compared: validators,
transforms, functions, and limits by which a row becomes a letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from redrive.dlq.insert.identity import Digests
from redrive.dlq.insert.row_builder import storable
from redrive.events.bus import EventBus
from redrive.rows.gate import Gate
from redrive.rows.prepare import OnDuplicate, Preparation
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import Sink
from redrive.rows.sources.source import ComparesOptions, Secret, Source
from redrive.store.database import Database
from redrive.store.encoding import encode

_KEY = "options"
_LONGEST = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The checked options of a pipeline."""

    pipeline: str
    source: Source
    sink: Sink
    preparation: Preparation
    key: tuple[str, ...]
    """The columns that identify a record in its letters, if the pipeline names them."""
    on_duplicate: OnDuplicate
    batch: int
    gate: Gate
    on_new_column: Literal["ignore", "reject"]
    """What to do with columns of the source that the model or schema does not name."""
    patience: float
    """Seconds for which transient errors of reading, validate and transform are retried."""
    announcer: EventBus
    target: str | None = None
    """Where the pipeline is defined, as FILE:NAME, if known."""

    @property
    def source_name(self) -> str:
        """The name of the source as text that can be stored: the name of a file may have bytes that are not text."""
        return storable(self.source.name)

    @property
    def sink_name(self) -> str:
        """The name of the sink as text that can be stored."""
        return storable(self.sink.name)


@dataclass(frozen=True, slots=True)
class ComparedOptions:
    """The options of a source, and those that decide how its rows are written, by name, as JSON."""

    reading: Mapping[str, Any]
    writing: Mapping[str, Any]
    is_reading_free: bool = False
    """Whether those of the source may change, by its option `on_change`."""

    @classmethod
    def of(cls, source: Source, sink: Sink, on_duplicate: OnDuplicate, database: Database) -> ComparedOptions:
        """Return the options of a pipeline. Secrets are digests that no other store can compare."""
        reading = source.compared_options() if isinstance(source, ComparesOptions) else {}
        mode = getattr(sink, "mode", None)  # a sink that only upserts has none
        writing = {
            "key": list(sink.key),
            "on_duplicate": on_duplicate,
            **(mode.compared_options() if isinstance(mode, WriteMode) else {}),
        }
        may_change = getattr(source, "on_change", "refuse") == "continue"
        return cls(_as_json(_hidden(reading, database)), _as_json(writing), may_change)

    def added_to(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity of a source with these options, as a checkpoint keeps it."""
        return {**identity, _KEY: {"reading": self.reading, "writing": self.writing}}

    def difference(self, identity: Mapping[str, Any], *, of_writing: bool) -> str | None:
        """Return how the options that a checkpoint was taken with differ from these, as a clause; None if they do not.

        Args:
            identity: What the checkpoint keeps. Options that an earlier version has not kept are not compared.
            of_writing: Whether the options of writing count as well: not after a run that is complete.
        """
        kept = identity.get(_KEY) or {}
        changes = [] if self.is_reading_free else _changes(kept.get("reading") or {}, self.reading)
        if of_writing:
            changes += _changes(kept.get("writing") or {}, self.writing)
        return "; ".join(changes) or None


def without_options(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a source as the source itself gives it."""
    return {name: value for name, value in identity.items() if name != _KEY}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [_change(name, was, now[name]) for name, was in before.items() if name in now and was != now[name]]


def _change(name: str, was: Any, now: Any) -> str:
    if _is_digest(was) or _is_digest(now):
        return f"its {name} has changed"
    if isinstance(was, Mapping) and isinstance(now, Mapping) and any(map(_is_digest, [*was.values(), *now.values()])):
        changed = [part for part in {**was, **now} if was.get(part) != now.get(part)]
        return f"its {name} have changed ({', '.join(map(storable, changed))})"
    return f"its {name} was {_shown(was)}, and here it is {_shown(now)}"


def _shown(value: Any) -> str:
    text = storable(orjson.dumps(value).decode())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _is_digest(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"digest"}


def _hidden(value: Any, database: Database) -> Any:
    """Return options with digests in place of secrets."""
    if isinstance(value, Secret):
        return {"digest": Digests.of(database).text(encode(value.value))}
    if isinstance(value, Mapping):
        return {name: _hidden(part, database) for name, part in value.items()}
    return value


def _as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(encode(options))
    return plain
