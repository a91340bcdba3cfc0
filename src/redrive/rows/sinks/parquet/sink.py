"""A directory of Parquet files as a sink: a file for every batch, and every key in one of them only."""

from __future__ import annotations

import fcntl
import os
import random
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from redrive._internal.files import local_path, open_new
from redrive._internal.optional import require_extra
from redrive.errors import SinkMismatch, Transient
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.parquet.columns import conformed, table_of
from redrive.rows.sinks.parquet.parts import BatchKeys, DatasetFiles, is_vague, require_plain_keys

with require_extra("rows"):
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

PATIENCE = 60.0
"""Seconds for which another process that writes to the dataset is waited for."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_LABEL = 100


def parquet_dataset(
    path: str | os.PathLike[str], *, key: str | Sequence[str], compression: str = "zstd"
) -> ParquetDataset:
    """Write rows to a directory of Parquet files; a row replaces an existing row of its key.

    Each batch is written to a new file, and then the older rows of its keys are removed from the others: for a moment a
    reader may see such a key twice, but never miss it. Files whose range of keys does not overlap that of the batch are
    not read, so keys that only grow cost nothing. The columns and their types are those of the first batch.

    path         the directory; it is created if it is missing
    key          the columns that identify a row
    compression  zstd, snappy, gzip, lz4, brotli or none
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(item, str) and item for item in keys) or len(set(keys)) < len(keys):
        raise ValueError("parquet_dataset needs the columns that identify a row: key='id', or key=['shop', 'id']")
    if compression != "none" and not (isinstance(compression, str) and _is_codec(compression)):
        raise ValueError(f"compression is zstd, snappy, gzip, lz4, brotli or none, not {compression!r}")
    return ParquetDataset(Path(local_path(path, "the directory of a parquet_dataset")), keys, compression)


class ParquetDataset:
    """See `Sink`."""

    def __init__(self, path: Path, key: tuple[str, ...], compression: str) -> None:
        self.name = str(path)
        self.key = key
        self.repeats = 0  # no error of it is transient
        self._path = path
        self._compression = compression
        self._parts = DatasetFiles(path, key)

    def __repr__(self) -> str:
        return f"<parquet_dataset {self.name!r}>"

    def exists(self) -> bool:
        return self._parts.exist()

    def check(self, columns: Sequence[str]) -> None:
        missing = [name for name in self.key if name not in columns]
        if missing:
            raise SinkMismatch(
                f"the rows have no {', '.join(missing)}, which {self.name} is written by", lacking=missing
            )
        self._require_directory()
        self._parts.look()
        known = self._parts.schema
        unknown = [] if known is None else [name for name in columns if name not in known.names]
        if known is not None and unknown:
            raise SinkMismatch(
                f"{self.name} has no {', '.join(unknown)}, only {', '.join(known.names)}: "
                "leave it out of the rows, or write to another dataset",
                unknown=unknown,
            )

    def write(self, rows: Outgoing, *, label: str) -> Sequence[Refused]:
        if not len(rows):
            return ()
        with self._alone() as directory:
            self._sweep()
            table, refused = self._fitted(rows)
            if table.num_rows:
                self._upsert(table, f"part-{_safe(label)}.parquet", directory)
        return refused

    def rehearse(self, rows: Outgoing) -> Sequence[Refused]:
        return self._fitted(rows)[1] if len(rows) else ()

    def close(self) -> None:
        self._parts.forget()

    def _fitted(self, rows: Outgoing) -> tuple[pa.Table, list[Refused]]:
        self.check(rows.columns)
        table, refused = table_of(rows, self._parts.schema, self.name)
        require_plain_keys(table.select(self.key).schema)
        return table, refused

    def _upsert(self, table: pa.Table, name: str, directory: int) -> None:
        keys, schema = BatchKeys(table.select(self.key)), table.schema
        before = self._parts.named(name)
        # A batch that is written again may have been cut otherwise the first time: what it had beside stays.
        kept = () if before is None else self._parts.without(before, keys)
        self._replace(name, chain([table], kept), schema)
        os.fsync(directory)  # from here on the new rows are safe, and the old ones may go
        for part in self._parts.others(name):
            if is_vague(part, schema) or self._parts.hold(part, keys):
                self._replace(part.name, self._parts.without(part, keys), schema)
        os.fsync(directory)

    def _replace(self, name: str, pieces: Iterable[pa.Table], schema: pa.Schema) -> None:
        """Replace a file atomically; one without rows is removed."""
        # The name cannot be guessed, so no link can be placed there. The file follows the umask of the user.
        temporary, target = self._path / f".{secrets.token_hex(6)}.{name}.tmp", self._path / name
        try:
            with open(open_new(temporary, 0o666), "wb") as file:
                rows = self._fill(file, pieces, schema)
                file.flush()
                os.fsync(file.fileno())
            if rows:
                os.replace(temporary, target)
            else:
                target.unlink()
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _fill(self, file: BinaryIO, pieces: Iterable[pa.Table], schema: pa.Schema) -> int:
        rows = 0
        with pq.ParquetWriter(file, schema, compression=self._compression, write_page_checksum=True) as writer:
            for piece in pieces:
                if piece.num_rows:
                    writer.write_table(conformed(piece, schema))
                    rows += piece.num_rows
        return rows

    def _require_directory(self) -> None:
        if self._path.exists() and not self._path.is_dir():
            raise SinkMismatch(f"{self.name} is a file, and parquet_dataset writes a directory of files")

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Keep other processes and threads from writing; the system ends this with the process, however that ends."""
        self._require_directory()
        if not self._path.exists():
            self._path.mkdir(parents=True, exist_ok=True)
            _make_lasting(self._path.parent)
        directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._wait_for(directory)
            yield directory
        finally:
            os.close(directory)

    def _wait_for(self, directory: int) -> None:
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise Transient(f"another process has been writing to {self.name} all this time") from None
            time.sleep(random.uniform(0.01, 0.05))

    def _sweep(self) -> None:
        """Remove what a process that was killed has left behind; only one process writes at a time."""
        for name in os.listdir(self._path):
            if name.startswith(".") and name.endswith(".parquet.tmp"):
                (self._path / name).unlink()


def _make_lasting(directory: Path) -> None:
    """See that what was made in a directory survives a power failure."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _is_codec(name: str) -> bool:
    try:
        return bool(pa.Codec.is_available(name))
    except ValueError:
        return False


def _safe(label: str) -> str:
    """Return the label as part of a file's name; if characters were replaced, with a digest."""
    safe = _UNSAFE.sub("-", label)[:_LONGEST_LABEL]
    if safe == label:
        return label
    return f"{safe}-{blake2b(label.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"
