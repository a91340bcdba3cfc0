"""The service behind `store.alerts`: it judges runs, opens and resolves alerts, and sends the messages about them.

Used by stores, which pass it every event; by `redrive watch`, which passes it snapshots of the levels; and by users.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, overload
from uuid import UUID

from sqlalchemy import Connection

from redrive._internal.masking import mask
from redrive.alerts.conditions import Fact, custom_finding, own_key
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.facts.runs import (
    RunName,
    gate_of,
    has_open_letters,
    mark_judged,
    read_snapshot,
    run_of,
    still_runs,
    unjudged,
)
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot
from redrive.alerts.lifecycle.debounce import Debouncer
from redrive.alerts.lifecycle.queries import OPEN, is_about, unconfigured_alerts, unwatched_alerts, withdraw
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.alerts.lifecycle.silences import SilenceLog, check_silence
from redrive.alerts.rules import keep_run_evidence, of_levels, of_run
from redrive.clock import Clock
from redrive.dlq.status import actor
from redrive.errors import AlertError, StoreError
from redrive.model.alerts import (
    Alert,
    AlertFilter,
    AlertStatus,
    Facts,
    Send,
    Severity,
    Silence,
    Subject,
    SubjectKind,
)
from redrive.model.calls import Event
from redrive.model.letters import LettersChanged, LettersPurged, LettersReplayed
from redrive.model.tasks import SlaAtRisk, TaskFailed, TasksDead
from redrive.store.database import Database
from redrive.store.schema import SCHEMA

LOG = logging.getLogger("redrive.alerts")

_MAX_ALERTS = 1_000  # open alerts that are read for one decision
_MAX_OTHER_RUNS = 5  # runs of other processes that are judged after one of this process


class Alerts:
    """Turn failures of the runs of one store into alerts, and manage these alerts.

    An error of the store never fails the run that is judged: `redrive watch` judges the run later.
    """

    def __init__(self, database: Database, settings: AlertSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.ledger = AlertRepository(database, settings)
        self.sender = Sender(database, settings)
        self._silences = SilenceLog(database)
        self._debouncer = Debouncer(self.judge)
        self._database = database
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Alerts of {self._database.name}>"

    # ── events and judgements ─────────────────────────────────────────────────────────────────────────────────────────

    def handle_event(self, event: Event) -> None:
        """Judge the run that an event is about, and send the alerts that follow from it."""
        if not self.settings.enabled:
            return
        try:
            if isinstance(event, LettersReplayed | LettersChanged | LettersPurged):
                self.resolve_handled_letters()
            elif (run := run_of(event)) is not None:
                if isinstance(event, TasksDead | TaskFailed | SlaAtRisk):
                    self._debouncer.ask(run)
                else:
                    self._debouncer.end(run)
                    self.judge(run)
                    self.judge_ended(limit=_MAX_OTHER_RUNS)  # runs whose own processes could not judge them
                    self.resolve_handled_letters()  # a run may have repaired rows that an alert is about
        except StoreError as error:
            LOG.warning("an event could not be judged now; `redrive watch` judges it later: %s", mask(str(error)))

    def judge(self, run: RunName) -> list[Alert]:
        """Judge one run by its current state; the judgement of an ended run is final."""
        now = self._now()
        snapshot, at = self._database.read(lambda connection: self._read_run(connection, run, now))
        if snapshot is None:
            return []
        judgement = of_run(snapshot, self.settings, now=at)
        if snapshot.is_history:
            judgement = keep_run_evidence(judgement)

        def is_unchanged(connection: Connection) -> bool:
            """Return whether no other process has judged or resumed the run meanwhile."""
            if snapshot.ended_at is None:
                return still_runs(connection, run)
            return mark_judged(connection, run, ended_at=snapshot.ended_at, now=at)

        return self._apply(judgement, only_if=is_unchanged)

    def judge_ended(self, *, limit: int = 100) -> list[Alert]:
        """Judge ended runs that were not judged because their process was killed or could not reach the store."""
        waiting = self._database.read(lambda connection: unjudged(connection, limit=limit))
        return [alert for run in waiting for alert in self.judge(run)]

    def apply_levels(
        self, snapshot: LevelSnapshot, *, only_if: Callable[[Connection], bool] | None = None
    ) -> list[Alert]:
        """Judge a snapshot of the levels.

        Args:
            snapshot: What was measured.
            only_if: Called in the transaction of the judgement; if it returns false, nothing is changed.

        Returns:
            The alerts that were opened, escalated or resolved.
        """
        changed = self._apply(of_levels(snapshot, self.settings), as_of=snapshot.now, only_if=only_if)
        return self.resolve_handled_letters() + changed

    def apply(self, judgement: Judgement) -> list[Alert]:
        """Apply a judgement of the watch about itself."""
        return self._apply(judgement)

    def resolve_handled_letters(self) -> list[Alert]:
        """Resolve alerts about rejected rows whose letters are all reprocessed or discarded."""
        alerts = [alert for alert in self.find(status=OPEN, limit=_MAX_ALERTS) if gate_of(alert) in alert.evidence]
        if not alerts:
            return []
        handled = self._database.read(
            lambda connection: [alert for alert in alerts if not has_open_letters(connection, alert)]
        )
        return self._apply(Judgement(judged=frozenset(gate_of(alert) for alert in handled))) if handled else []

    def pass_time(self) -> list[Alert]:
        """Open alerts whose condition has lasted for long enough, send open alerts again, and resolve cleared ones."""
        changed = self.ledger.pass_time(now=self._now())
        self.sender.wake()
        return changed

    def send_due(self) -> int:
        """Send the messages that are due now; return how many were sent."""
        return self.sender.send_due(now=self._now())

    def _read_run(self, connection: Connection, run: RunName, now: datetime | None) -> tuple[Any, datetime]:
        at = self._database.dialect.now(connection) if now is None else now
        return read_snapshot(connection, run, at), at

    def _apply(
        self,
        judgement: Judgement,
        *,
        as_of: datetime | None = None,
        only_if: Callable[[Connection], bool] | None = None,
    ) -> list[Alert]:
        changed = self.ledger.apply(self._adapt_sql(judgement), now=self._now(), as_of=as_of, only_if=only_if)
        if changed:
            self.sender.wake()
        else:  # messages may be due because a snooze, a silence or quiet hours ended
            self.sender.wake_if_due(now=self._now())
        return changed

    def _adapt_sql(self, judgement: Judgement) -> Judgement:
        """Return the judgement with its SQL in the form of this database: SQLite has no schemas."""
        if self._database.dialect.is_remote:
            return judgement
        adapted = (
            replace(finding.facts, sql=(finding.facts.sql or "").replace(f"FROM {SCHEMA}.", "FROM ") or None)
            for finding in judgement.findings
        )
        findings = tuple(
            replace(finding, facts=facts) for finding, facts in zip(judgement.findings, adapted, strict=True)
        )
        return replace(judgement, findings=findings)

    def _now(self) -> datetime | None:
        """Return the time of the configured clock; None to use the clock of the database."""
        return None if self._clock is None else self._clock.now()

    # ── alerts that programs open ─────────────────────────────────────────────────────────────────────────────────────

    def open(
        self,
        *,
        key: str,
        severity: Severity | str,
        title: str,
        facts: Facts | Mapping[str, Fact] | None = None,
        pipeline: str | None = None,
    ) -> Alert | None:
        """Open an alert of your own. It takes the routes of its severity, and stays open until `resolve(key)`.

        If the alert of this key is already open, its count, title and facts are updated and no notification is sent,
        unless the severity is higher than before.

        Args:
            key: What the alert is about, such as "nightly-export"; one alert per key is open at a time.
            severity: "P1", "P2" or "P3".
            title: One line that describes the problem.
            facts: Names and values to show in the message, or `redrive.types.Facts`.
            pipeline: The pipeline or flow that it is about, whose routes, runbook and links it uses.

        Returns:
            The alert; None if alerts are disabled in the settings.

        Raises:
            ValueError: An argument is not valid; nothing was stored.
            StoreError: The store cannot be written.
        """
        finding = custom_finding(key, severity=severity, title=title, facts=facts, pipeline=pipeline)
        if not self.settings.enabled:
            return None
        alert = self.ledger.open(finding, now=self._now())
        self.sender.wake()
        return alert

    # ── queries and decisions of operators ────────────────────────────────────────────────────────────────────────────

    def find(
        self,
        *,
        status: AlertStatus | str | None = None,
        urgency: Severity | str | None = None,
        subject: str | None = None,
        condition: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[Alert]:
        """Return the alerts that match, the newest first; the status "open" matches all that are not resolved."""
        return self.ledger.find(
            status=status, urgency=urgency, subject=subject, condition=condition, since=since, limit=limit
        )

    def get(self, alert_id: int) -> Alert:
        """Return the alert with this id."""
        return self.ledger.get(alert_id)

    def sends(self, alert_id: int) -> list[Send]:
        """Return the messages about an alert, the oldest first."""
        return self.ledger.sends(alert_id)

    def unsent(self) -> list[Send]:
        """Return the messages that are waiting for delivery or that failed."""
        return self.ledger.unsent()

    def unconfigured(self) -> list[Send]:
        """Return the messages that wait for channels which the settings of this process do not have."""
        return self.ledger.unconfigured()

    @overload
    def acknowledge(self, alert_id: int, *, by: str, note: str | None = None) -> Alert: ...

    @overload
    def acknowledge(self, *, key: str, by: str, note: str | None = None) -> Alert | None: ...

    def acknowledge(
        self, alert_id: int | None = None, *, key: str | None = None, by: str, note: str | None = None
    ) -> Alert | None:
        """Acknowledge an alert. It is not sent again, unless it escalates.

        Args:
            alert_id: The number of the alert.
            key: The key of the alert instead of its number, as channels receive it; for acknowledgements from
                PagerDuty, Slack or another system.
            by: The name of the operator.
            note: A note to store with the alert.

        Returns:
            The alert. With a key, None if no alert of this key is open, so a late acknowledgement does no harm.
        """
        if (alert_id is None) is (key is None):
            raise TypeError("acknowledge needs the number of an alert, or key=")
        if alert_id is None:
            assert key is not None
            alert_id = self.ledger.open_id(key)
            if alert_id is None:
                return None
        alert = self.ledger.acknowledge(alert_id, by=by, note=note, now=self._now())
        self.sender.wake()
        return alert

    @overload
    def resolve(self, alert_id: int, *, by: str, note: str) -> Alert: ...

    @overload
    def resolve(self, alert_id: str, *, by: str | None = None, note: str | None = None) -> Alert | None: ...

    def resolve(self, alert_id: int | str, *, by: str | None = None, note: str | None = None) -> Alert | None:
        """Resolve an alert: by its number, as an operator, or by the key under which a program opened it.

        Args:
            alert_id: The number of any alert, or the key that was given to `open`.
            by: The name of the operator; required with a number.
            note: Why it is resolved; required with a number.

        Returns:
            The resolved alert. With a key, None if no alert of this key is open, so resolving twice does no harm.
        """
        if isinstance(alert_id, str):
            if not self.settings.enabled:
                return None
            resolved = self.ledger.close_key(own_key(alert_id), by=by, note=note, now=self._now())
        elif by is None or note is None:
            raise TypeError("resolve(number) needs by= and note=; an alert of your own is resolved by its key, a text")
        else:
            resolved = self.ledger.close(alert_id, by=by, note=note, now=self._now())
        self.sender.wake()
        return resolved

    def silence(
        self,
        *,
        seconds: float,
        reason: str,
        subject: str | None = None,
        condition: str | None = None,
        pipeline: str | None = None,
        by: str | None = None,
    ) -> Silence:
        """Silence matching alerts. They are stored, and sent if they are still open when the silence ends.

        Args:
            seconds: How long the silence lasts.
            reason: Why the alerts are silenced.
            subject: The name of the pipeline, flow, service or table that the alerts are about.
            condition: The condition of the alerts, such as "slow".
            pipeline: The pipeline or flow that the alerts are about, or that is their only member.
            by: The name of the operator; the user of the process by default.

        Raises:
            AlertError: The silence is not valid; nothing was stored.
        """
        if subject is not None:
            subject = self.ledger.stored_subject(subject)
        only = AlertFilter(subjects=_names(subject), conditions=_names(condition), pipelines=_names(pipeline))
        length = _length(seconds)
        check_silence(only, length, reason, conditions=self.settings.defined)
        return self._silences.add(only, length=length, reason=reason, by=by or actor(), now=self._now())

    def snooze(self, alert_id: int, *, seconds: float, reason: str = "snoozed", by: str | None = None) -> Silence:
        """Silence one alert. If it is still open when the snooze ends, it is sent, even if it was acknowledged."""
        length = _length(seconds)
        check_silence(AlertFilter(keys=(str(alert_id),)), length, reason)
        return self.ledger.snooze(alert_id, length=length, reason=reason, by=by or actor(), now=self._now())

    def end_silence(self, silence_id: int, *, by: str | None = None) -> Silence:
        """End a silence early. Alerts that are still open are sent at the watch's next check or by the next run."""
        return self._silences.end(silence_id, by=by or actor(), now=self._now())

    def silences(self, *, ended: bool = False, limit: int = 100) -> list[Silence]:
        """Return the silences, the newest first; with `ended`, also those that are over."""
        return self._silences.find(ended=ended, now=self._now(), limit=limit)

    def silenced_until(self, alerts: Collection[Alert]) -> dict[int, datetime]:
        """Return until when each of these alerts is silenced, by id; alerts that are not silenced are left out."""
        return self.ledger.silenced_until(alerts, now=self._now())

    def test(self, urgency: Severity | str, *, pipeline: str | None = None) -> Sequence[Send]:
        """Send a test message over the routes of a severity; return the state of each message."""
        alert = self.ledger.put_test(Severity(urgency), pipeline=pipeline)
        self.sender.send_due(now=self._now(), alert_id=alert.id)
        return self.ledger.sends(alert.id)

    def retire(
        self,
        name: str,
        kinds: Collection[SubjectKind],
        *,
        by: str,
        run_ids: Sequence[UUID] = (),
        params: Sequence[str] = (),
    ) -> int:
        """Resolve the alerts of a pipeline, flow or service that an operator forgets; return how many.

        Args:
            name: The name of the pipeline, flow or service.
            kinds: "pipeline", "flow" or "service".
            by: The name of the operator.
            run_ids: The runs of a flow.
            params: The parameters of a flow's runs.
        """
        own = [alert for alert in self.find(status=OPEN, limit=_MAX_ALERTS) if is_about(alert, name, kinds)]
        for alert in own:
            self.resolve(alert.id, by=by, note=f"{alert.subject} was forgotten")
        for kind in (kind for kind in kinds if kind != "service"):
            self._apply(withdraw(Subject(kind=kind, name=name), run_ids, params))
        return len(own)

    def close_unconfigured(self) -> list[Alert]:
        """Resolve alerts about conditions and tables that were removed from the settings: nothing measures them."""
        return self._close_removed(unconfigured_alerts(self.find(status=OPEN, limit=_MAX_ALERTS), self.settings))

    def close_unwatched(self, snapshot: LevelSnapshot) -> list[Alert]:
        """Resolve missed deadlines of pipelines whose deadline was removed from the settings."""
        missed = self.find(status=OPEN, condition="sla_missed", limit=_MAX_ALERTS)
        return self._close_removed(unwatched_alerts(missed, snapshot))

    def _close_removed(self, alerts: Sequence[Alert]) -> list[Alert]:
        return [self.resolve(alert.id, by="redrive watch", note="no longer configured") for alert in alerts]

    def purge(self) -> int:
        """Delete alerts that were resolved longer ago than the settings keep them; return how many."""
        return self.ledger.purge(older_than=timedelta(days=self.settings.keep_days), now=self._now())

    def close(self) -> None:
        """Send due messages for a moment; other processes send the rest."""
        self._debouncer.close()
        self.sender.close()


def _names(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def _length(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise AlertError("a silence must last for more than 0 seconds, and a year at most") from None
