"""`redrive.connect` and `Store`: the database of a project, with its letters, runs, tasks, services and alerts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from redrive import config
from redrive._internal.database_url import STORE_FORMS, parse_url, wrong_path
from redrive._internal.files import local_path
from redrive.dlq.filters import moment
from redrive.dlq.queue import DeadLetters
from redrive.errors import LetterError, UnknownStore
from redrive.events.bus import Hook
from redrive.model.calls import Event
from redrive.model.letters import LettersChanged, LettersPurged, LettersReplayed, QueueSize
from redrive.model.runs import RunEnded
from redrive.model.tasks import FlowEnded, SlaAtRisk, TaskFailed, TasksDead
from redrive.store import migrate
from redrive.store.database import PATIENCE, Database
from redrive.store.dialects.dialect import Dialect
from redrive.store.repositories.runs import RunRepository
from redrive.store.repositories.service_state import ServiceStateRepository
from redrive.store.repositories.services import ServiceRepository
from redrive.store.repositories.tasks import TaskRepository

if TYPE_CHECKING:
    from redrive.alerts.config.settings import AlertSettings
    from redrive.alerts.service import Alerts
    from redrive.store.retention.finished import StorePurged

DEFAULT = ".redrive/redrive.db"
_FOR_ALERTS = (RunEnded, FlowEnded, TasksDead, TaskFailed, SlaAtRisk, LettersReplayed, LettersChanged, LettersPurged)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """Where a store is, and what it holds."""

    url: str
    """Its location, without a password."""
    database: str
    """`sqlite` or `postgresql`."""
    schema_version: str | None
    """The schema version of the database; None if it has no redrive tables."""
    known_version: str
    """The schema version that this program expects."""
    size: QueueSize | None
    """The size of the queue; None if the schema has another version."""


class Store:
    """The database of a project: letters, runs, tasks, alerts and shared service state. Safe to use from many threads.

    dlq       the dead letters
    runs      what pipelines did
    tasks     what flows did, and their tasks
    services  what services did, if they have the store: `redrive.Service(…, store=store)`
    alerts    alerts, silences and notifications
    shared    what processes share about services: `redrive.Service(…, store=store)`
    """

    def __init__(
        self,
        database: Database,
        *,
        redact: Iterable[str] = (),
        store_redacted: bool = False,
        alerts: AlertSettings | None = None,
    ) -> None:
        self.database = database
        self.listeners: tuple[Hook, ...] = (self._pass_to_alerts,)
        self.dlq = DeadLetters(database, redact=redact, store_redacted=store_redacted, listeners=self.listeners)
        self.runs = RunRepository(database)
        self.tasks = TaskRepository(database)
        self.services = ServiceRepository(database)
        self.shared = ServiceStateRepository(database)
        self._alert_settings = alerts

    def __repr__(self) -> str:
        return f"<Store {self.database.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @cached_property
    def alerts(self) -> Alerts:
        """List, acknowledge and resolve alerts."""
        from redrive.alerts.config.settings import AlertSettings
        from redrive.alerts.service import Alerts

        return Alerts(self.database, self._alert_settings or AlertSettings())

    def _pass_to_alerts(self, event: Event) -> None:
        if isinstance(event, _FOR_ALERTS):  # all other events are only logged
            self.alerts.handle_event(event)

    def info(self) -> StoreInfo:
        """Return where the store is, which schema it has, and how much it holds."""
        version = self.database.read(migrate.version)
        return StoreInfo(
            url=self.database.name,
            database=self.database.read(lambda connection: connection.dialect.name),
            schema_version=version,
            known_version=migrate.VERSION,
            size=self.dlq.size() if version == migrate.VERSION else None,
        )

    def migrate(self) -> tuple[str | None, str]:
        """Migrate the schema; return the version before and after."""
        return self.database.migrate()

    @property
    def results(self) -> Path:
        """The default directory of task results that are too large for the store; `Flow(files=…)` names another."""
        where = Path(DEFAULT) if self.database.dialect.is_remote else Path(self.database.name)
        return where.parent / "results"

    def purge(
        self,
        *,
        older_than: timedelta | str | datetime,
        dry_run: bool = False,
        files: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> StorePurged:
        """Remove old finished work: runs, flows with their tasks and results, resolved alerts, metrics of services.

        Letters have a purge of their own: `store.dlq.purge`. Work that is unfinished, blocked or waited for stays, and
        so do the newest runs of each pipeline and flow, which alerts compare with. Other processes may work meanwhile;
        a purge that was killed can be run again.

        older_than  how long ago the work must have ended: a timedelta, "90d", or a time
        dry_run     only return what would be removed
        files       the directory that `Flow(files=…)` names, if the results are there
        progress    called with the number of runs that were processed, and the number of all
        """
        from redrive.store.retention.purge import purge, results_directory

        # By the database's clock, which all processes share: a process whose clock is ahead would purge recent work.
        before = old_before(older_than, self.database.read(self.database.dialect.now))
        where = results_directory(files, usual=self.results)
        return purge(self.database, before=before, files=where, dry_run=dry_run, progress=progress)

    def close(self) -> None:
        """Detach the services that share this store, and close the connections; the store may be used again."""
        if "alerts" in vars(self):
            self.alerts.close()
        self.services.close()
        self.shared.close()
        self.database.close()


def old_before(older_than: timedelta | str | datetime, now: datetime) -> datetime:
    """Return the time before which work is old. A time in the future is a mistake: it would remove everything."""
    before = moment(older_than, now, "older_than")
    if before > now:
        raise LetterError(f"older_than must lie in the past, not at {before:%Y-%m-%d %H:%M} UTC; nothing was changed")
    return before


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    migrate: bool | None = None,
    redact: Iterable[str] | None = None,
    store_redacted: bool | None = None,
    patience: float | None = None,
) -> Store:
    """Open a store: `sqlite:///…`, a path, or `postgresql://…`.

    The defaults are those of the environment (REDRIVE_STORE …), then of `redrive.toml`; without any, the store is
    `.redrive/redrive.db`.

    url             the store's URL or path
    migrate         migrate an older schema; by default True on SQLite and False on PostgreSQL
    redact          fields to mask in output, such as ["card_number", "*.ssn"]
    store_redacted  mask them in the stored record, too
    patience        seconds to wait for a database that restarts or is busy (30)
    """
    settings = config.load(store=url, migrate=migrate, store_redacted=store_redacted, patience=patience)
    return open_store(settings, redact=redact)


def open_store(
    settings: config.Settings, *, redact: Iterable[str] | None = None, may_lack_secrets: bool = False
) -> Store:
    """Open the store of these settings.

    may_lack_secrets  allow channels whose addresses are not set here, for commands that send nothing
    """
    waits = PATIENCE if settings.patience is None else settings.patience
    dialect = _dialect(settings.store, waits)
    store = Store(
        Database(dialect, patience=waits),
        redact=settings.redact if redact is None else redact,
        store_redacted=settings.store_redacted,
        alerts=_alerts(settings, may_lack_secrets=may_lack_secrets),
    )
    try:
        store.database.prepare(migrating=dialect.migrates_itself if settings.migrate is None else settings.migrate)
    except BaseException:
        store.close()
        raise
    return store


def _alerts(settings: config.Settings, *, may_lack_secrets: bool) -> AlertSettings | None:
    """Return the settings of alerts. A wrong setting raises now, not when the first alert is sent."""
    if not settings.alerts and settings.alerts_on is None:
        return None  # most programs need these modules only after a run has ended
    from redrive.alerts.config.read import read

    return read(settings, may_lack_secrets=may_lack_secrets)


def _dialect(url: str | os.PathLike[str] | None, patience: float) -> Dialect:
    from redrive.store.dialects.sqlite import SqliteDialect

    if url is None or (isinstance(url, str) and not url):
        return SqliteDialect(Path(DEFAULT), patience=patience)
    if str(url) == ":memory:":
        url = "sqlite://"
    if not isinstance(url, str) or "://" not in url:
        if wrong := wrong_path(url, STORE_FORMS):
            raise UnknownStore(f"the store cannot be opened: {wrong}")
        return SqliteDialect(_file(url), patience=patience)
    try:
        parsed = parse_url(url, "the store's URL", STORE_FORMS)
    except ValueError as error:
        raise UnknownStore(str(error)) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise UnknownStore("a store in memory would lose its letters with the process; name a file: sqlite:///x.db")
        return SqliteDialect(_file(parsed.database), patience=patience)
    if backend in {"postgresql", "postgres"}:
        from redrive.store.dialects.postgres import PostgresDialect

        return PostgresDialect(parsed)
    raise UnknownStore(f"a store is SQLite or PostgreSQL, not {backend}; write {STORE_FORMS}")


def _file(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(local_path(path, "the file of a store"))
    except ValueError as error:
        raise UnknownStore(str(error)) from None
