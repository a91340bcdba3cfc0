"""Columns that stand in the names of directories, as Hive, Spark and Athena write them: `dt=2026-07-01/part-0.parquet`.

Such a value is in no file. Without it rows of several partitions would look alike, and overwrite each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from glob import has_magic
from typing import Any
from urllib.parse import unquote

from redrive.rows.batch import Batch, Received, Record
from redrive.rows.sources.source import Reading

Partition = dict[str, str | None]

_DIRECTORY = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NULL = "__HIVE_DEFAULT_PARTITION__"
_CONTEXT = "partition"


def partitions_of(names: Sequence[str], patterns: Sequence[str]) -> dict[str, Partition]:
    """Return the columns of each file that stand in directories which a glob has found; none where there are none.

    A directory that the path names itself, as in "in/dt=2026-07-01/*.csv", is no column: it was chosen.
    """
    roots = sorted(map(_root, filter(has_magic, patterns)), key=len, reverse=True)
    found = {name: _partition(name, roots) for name in names}
    columns = dict.fromkeys(column for partition in found.values() for column in partition)
    if not columns:
        return {}
    return {name: {column: partition.get(column) for column in columns} for name, partition in found.items()}


def with_partitions(reading: Reading, partitions: Mapping[str, Partition]) -> Reading:
    """Return the reading with the columns of its partitions, where there are some."""
    return _Partitioned(reading, partitions) if partitions else reading


def add_partition(found: Record | list[Record], context: Mapping[str, Any] | None) -> Record | list[Record]:
    """Return what was read again of a letter with the columns of its partition."""
    partition = partition_in(context)
    if not partition:
        return found
    return [{**partition, **one} for one in found] if isinstance(found, list) else {**partition, **found}


def partition_in(context: Mapping[str, Any] | None) -> Mapping[str, str | None]:
    """Return the columns of its partition that the context of a letter holds."""
    found = (context or {}).get(_CONTEXT)
    return found if isinstance(found, Mapping) else {}


class _Partitioned:
    """See `Reading`."""

    def __init__(self, reading: Reading, partitions: Mapping[str, Partition]) -> None:
        self._reading = reading
        self._partitions = partitions
        self._names = tuple(next(iter(partitions.values())))

    @property
    def columns(self) -> tuple[str, ...] | None:
        columns = self._reading.columns
        return None if columns is None else tuple(dict.fromkeys((*columns, *self._names)))

    @property
    def total(self) -> int | None:
        return self._reading.total

    def read(self, most: int) -> Batch | None:
        batch = self._reading.read(most)
        if batch is not None:
            partition = self._partitions[batch.source]
            batch.rows = _with_columns(batch.rows, partition)
            for one in batch.unreadable:
                one.context = {**(one.context or {}), _CONTEXT: partition}
        return batch

    def close(self) -> None:
        self._reading.close()


def _with_columns(rows: Received, partition: Partition) -> Received:
    """The rows with the columns of their partition; a column that is in the file itself stays as it is there."""
    if not rows.is_frame:
        return Received([{**record, **_missing(partition, record)} for record in rows.records])
    import polars as pl

    new = [pl.lit(value, pl.String).alias(name) for name, value in partition.items() if name not in rows.columns]
    return Received(rows.frame.with_columns(new))


def _missing(partition: Partition, record: Record) -> Partition:
    return {column: value for column, value in partition.items() if column not in record}


def _root(pattern: str) -> str:
    """The directories of a pattern before the first with a wildcard."""
    parts = pattern.split(os.sep)
    fixed = next(place for place, part in enumerate(parts) if has_magic(part))
    return "".join(f"{part}{os.sep}" for part in parts[:fixed])


def _partition(name: str, roots: Sequence[str]) -> Partition:
    root = next((root for root in roots if name.startswith(root)), None)
    if root is None:
        return {}
    directories = name.removeprefix(root).split(os.sep)[:-1]
    pairs = [found.groups() for directory in directories if (found := _DIRECTORY.fullmatch(directory))]
    return {unquote(column): None if value == _NULL else unquote(value) for column, value in pairs}
