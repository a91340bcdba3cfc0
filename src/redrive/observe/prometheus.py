"""Prometheus: the figures of a store as metrics, over HTTP and as a file for the node exporter.

The figures are those of the store, not of this process: one exporter is enough for all processes that share it. Labels
are names of services, endpoints, pipelines, flows and channels, and the states and outcomes of redrive. They are never
ids of runs, keys or messages.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import Connection

from redrive._internal.files import local_path, open_new, scratch_beside
from redrive._internal.optional import require_extra
from redrive.config import ConfigError
from redrive.errors import StoreError
from redrive.model.calls import Kind
from redrive.observe.figures import Figures, Reader, limit_names, most_names
from redrive.observe.metric_families import families, up
from redrive.observe.metrics_server import HttpAnswer, MetricsServer
from redrive.store import migrate
from redrive.store.database import Database

with require_extra("prometheus"):
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from redrive.store.store import Store

LISTEN = "127.0.0.1:9464"
KEPT = 1.0
"""Seconds for which an answer is cached: many scrapers cost the store no more than one."""
_TIMEOUT = 2.0  # seconds: short, since a scraper tries again soon
_QUEUE = 5.0  # seconds for which a request waits while another is being answered

T = TypeVar("T")


class StoreCollector(Collector):
    """The metrics of a store for a registry of your own: `prometheus_client.REGISTRY.register(StoreCollector(store))`.

    Every scrape reads the store, and raises StoreError where the store does not answer.
    """

    def __init__(self, store: Store) -> None:
        self._reader = Reader(store.database)

    def describe(self) -> Iterator[Metric]:
        """Yield the metric families, without reading the store."""
        yield from families(Figures(database="", schema_version=""), took=0.0)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as they are now."""
        yield from _scrape(self._reader)


def render(store: Store, *, accept: str = "") -> bytes:
    """Return the metrics as text: in the format 0.0.4, or in the one that an Accept header asks for."""
    return _encode(_scrape(Reader(store.database)), accept)[0]


def write_textfile(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the metrics to a file, atomically, for the textfile collector of the node exporter.

    Where the store cannot be read, the file states that (`redrive_up 0`) instead of outdated figures, and the error is
    raised.
    """
    try:
        target = Path(local_path(path, "the file of metrics"))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if target.suffix != ".prom":
        raise ConfigError(f"{target} would not be read: the node exporter takes files whose names end in .prom")
    try:
        text = render(store)
    except StoreError:
        _replace(target, _encode([up(False)], "")[0])
        raise
    _replace(target, text)


def serve(store: Store, listen: str = LISTEN, *, health: Health | None = None) -> MetricsServer:
    """Answer `/metrics`, `/healthz` and `/readyz` until the server is closed.

    Args:
        store: The store.
        listen: Host and port.
        health: Returns whether the process does its work, for the time in which the store answers.
    """
    exporter = _Exporter(store.database, health)
    return MetricsServer(listen, exporter.answer, closed=exporter.close)


def _replace(target: Path, text: bytes) -> None:
    beside = Path(scratch_beside(target))
    try:
        # The file is readable by others, as far as the umask allows: the node exporter is another user.
        with open(open_new(beside, 0o666), "wb") as file:
            file.write(text)
        os.replace(beside, target)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            beside.unlink()
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{target} cannot be written: {why.lower()}") from None


def _scrape(reader: Reader) -> list[Metric]:
    began = time.perf_counter()
    figures = limit_names(reader.read(), most_names())
    return list(families(figures, took=time.perf_counter() - began))


def _encode(metrics: list[Metric], accept: str) -> tuple[bytes, str]:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library fails on a version that is not a number
        encode, content_type = choose_encoder("")
    return encode(_Collected(metrics)), content_type


class _Collected(Collector):
    """Metrics that were collected already, in the form that the library takes."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


Health = Callable[[], tuple[bool, str]]
"""Whether the process is healthy, and a sentence about it."""


class _Exporter:
    """Answers for one store, through connections of its own, so that neither side waits for the other."""

    def __init__(self, database: Database, health: Health | None) -> None:
        self._database = Database(database.dialect, patience=_TIMEOUT)
        self._check_health = health or (lambda: (True, "ok"))
        reader = Reader(self._database)
        self._metrics = _Cached(lambda: _scrape(reader))
        self._health = _Cached(self._check_schema)

    def answer(self, path: str, accept: str) -> HttpAnswer:
        """Return the answer for a path."""
        try:
            if path == "/metrics":
                return HttpAnswer(200, *_encode(self._metrics.get(), accept))
            if path in ("/healthz", "/readyz"):
                self._health.get()
                healthy, sentence = self._check_health()
                return HttpAnswer.sentence(200 if healthy else 503, sentence)
        except StoreError as error:
            return HttpAnswer.sentence(503, str(error))
        return HttpAnswer.sentence(404, "there is /metrics, /healthz and /readyz")

    def close(self) -> None:
        """Close its connections."""
        self._database.close()

    def _check_schema(self) -> None:
        def work(connection: Connection) -> None:
            version = migrate.version(connection)
            if not migrate.is_current(version, where=self._database.name):
                raise StoreError(f"{self._database.name} has no schema of this redrive: run `redrive store migrate`")

        self._database.read(work)


class _Cached(Generic[T]):
    """A value that is made for one caller at a time, and cached for a short time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._until = -1.0
        self._made: list[T] = []
        self._fault: tuple[str, Kind] | None = None

    def get(self) -> T:
        """Return the value, or raise the error of the last attempt to make it."""
        if not self._lock.acquire(timeout=_QUEUE):
            raise StoreError("another request is still being answered: the store is slow", kind=Kind.TRANSIENT)
        try:
            if time.monotonic() >= self._until:
                self._renew()
            if self._fault is not None:
                message, kind = self._fault
                raise StoreError(message, kind=kind)
            return self._made[0]
        finally:
            self._lock.release()

    def _renew(self) -> None:
        self._made, self._fault = [], None
        try:
            self._made = [self._make()]
        except StoreError as error:
            self._fault = str(error), error.kind
        self._until = time.monotonic() + KEPT
