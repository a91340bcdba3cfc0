"""What the runs of a pipeline are made of."""

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
    """A pipeline's parts."""

    pipeline: str
    source: Source
    sink: Sink
    preparation: Preparation
    key: tuple[str, ...]
    """The columns by which people know a record, where the pipeline names them."""
    on_duplicate: OnDuplicate
    batch: int
    gate: Gate
    on_new_column: Literal["ignore", "reject"]
    """What to do about columns of the source that the model or schema does not name."""
    patience: float
    """Seconds for which transient errors of reading, validate and transform are retried."""
    announcer: EventBus
    target: str | None = None
    """What runs it, FILE:NAME, where that is known."""

    @property
    def source_name(self) -> str:
        """The source as it is told of: a file's name need not be text."""
        return storable(self.source.name)

    @property
    def sink_name(self) -> str:
        """The sink as it is told of."""
        return storable(self.sink.name)
