"""The options of a pipeline's runs, passed from `Pipeline` to the run and its writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redrive.dlq.insert.row_builder import storable
from redrive.events.bus import EventBus
from redrive.rows.gate import Gate
from redrive.rows.prepare import OnDuplicate, Preparation
from redrive.rows.sinks.sink import Sink
from redrive.rows.sources.source import Source


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
