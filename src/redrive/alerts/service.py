"""`store.alerts`: hears of runs, judges them, and keeps what people are to be told until they were."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, overload
from uuid import UUID

from sqlalchemy import Connection

from redrive._internal.masking import mask
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.custom import Fact, custom_finding, own_key
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.facts.runs import RunName, gate_of, mark_judged, picture_of, still_runs, unjudged, waits
from redrive.alerts.facts.snapshot import Judgement, LevelPicture
from redrive.alerts.lifecycle.debounce import Debouncer
from redrive.alerts.lifecycle.repository import OPEN, AlertRepository
from redrive.alerts.lifecycle.retired import is_about, withdraw
from redrive.alerts.lifecycle.silences import SilenceLog, check_silence
from redrive.alerts.rules import registry
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
from redrive.model.runs import RunEnded
from redrive.model.tasks import FlowEnded, SlaAtRisk, TaskFailed, TasksDead
from redrive.store.database import Database
from redrive.store.schema import SCHEMA

LOG = logging.getLogger("redrive.alerts")

_MOST = 1_000  # alerts about letters that are looked at
_OF_ITS_TASKS = ("dead:", "task_sla:")
"""How evidence begins that is about tasks of one run, whatever other runs do."""
_OF_ITS_ROWS = ":gate"
"""How evidence ends that is about rejected rows: they stay quarantined, whatever other runs do."""
_OTHERS = 5  # runs of others that are judged with one of our own


class Alerts:
    """Where failures become alerts, of all runs of one store.

    Whatever it does, it never fails the run that it hears of: what it could not do, `redrive watch` does later.
    """

    def __init__(self, database: Database, settings: AlertSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.ledger = AlertRepository(database, settings)
        self.sender = Sender(database, settings)
        self._silences = SilenceLog(database)
        self._pace = Debouncer(self.judge)
        self._database = database
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Desk of {self._database.name}>"

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, event: Event) -> None:
        """Judge the run that an event tells of, and see that people are told."""
        if not self.settings.enabled:
            return
        try:
            if isinstance(event, LettersReplayed | LettersChanged | LettersPurged):
                self.look_at_letters()
            elif (run := _run_of(event)) is not None:
                if isinstance(event, TasksDead | TaskFailed | SlaAtRisk):
                    self._pace.ask(run)
                else:
                    self._pace.end(run)
                    self.judge(run)
                    self.judge_ended(limit=_OTHERS)  # what their own processes could not judge
                    self.look_at_letters()  # a run may have made good what another was told of
        except StoreError as error:
            LOG.warning("what happened could not be judged now, and will be by `redrive watch`: %s", mask(str(error)))

    def judge(self, run: RunName) -> list[Alert]:
        """Judge one run as it stands: for good where it has ended, and so far where it goes on."""
        now = self._now()
        picture, at = self._database.read(lambda connection: self._seen(connection, run, now))
        if picture is None:
            return []
        judgement = registry.of_run(picture, self.settings, now=at)
        if picture.is_history:
            judgement = _of_its_own(judgement)

        def is_as_seen(connection: Connection) -> bool:
            """Another process may have judged it meanwhile, or have gone on with it: its end is then judged anew."""
            if picture.ended_at is None:
                return still_runs(connection, run)
            return mark_judged(connection, run, ended_at=picture.ended_at, now=at)

        return self._applied(judgement, only_if=is_as_seen)

    def judge_ended(self, *, limit: int = 100) -> list[Alert]:
        """Judge runs that ended and that nobody has judged: their process was killed, or had no store."""
        waiting = self._database.read(lambda connection: unjudged(connection, limit=limit))
        return [alert for run in waiting for alert in self.judge(run)]

    def look(self, picture: LevelPicture, *, only_if: Callable[[Connection], bool] | None = None) -> list[Alert]:
        """Judge what is a level, provided that whoever looked may still say so when it is stored."""
        changed = self._applied(registry.of_levels(picture, self.settings), as_of=picture.now, only_if=only_if)
        return self.look_at_letters() + changed

    def apply(self, judgement: Judgement) -> list[Alert]:
        """Take in what the watch finds of itself."""
        return self._applied(judgement)

    def look_at_letters(self) -> list[Alert]:
        """Close what was told of rejected rows, where none of them waits for an operator, and no run is aborted."""
        told = [one for one in self.find(status=OPEN, limit=_MOST) if gate_of(one) in one.evidence]
        if not told:
            return []
        settled = self._database.read(lambda connection: [one for one in told if not waits(connection, one)])
        return self._applied(Judgement(judged=frozenset(gate_of(one) for one in settled))) if settled else []

    def pass_time(self) -> list[Alert]:
        """Tell of what has held for long enough, repeat what is still open, and close what is over."""
        changed = self.ledger.pass_time(now=self._now())
        self.sender.ring()
        return changed

    def send_due(self) -> int:
        """Send what is due, now; how many messages went out."""
        return self.sender.send_due(now=self._now())

    def _seen(self, connection: Connection, run: RunName, now: datetime | None) -> tuple[Any, datetime]:
        at = self._database.dialect.now(connection) if now is None else now
        return picture_of(connection, run, at), at

    def _applied(
        self,
        judgement: Judgement,
        *,
        as_of: datetime | None = None,
        only_if: Callable[[Connection], bool] | None = None,
    ) -> list[Alert]:
        changed = self.ledger.apply(self._as_asked_here(judgement), now=self._now(), as_of=as_of, only_if=only_if)
        if changed:
            self.sender.ring()
        else:  # a snooze that ended, or what others have left: a silence or quiet hours may be over
            self.sender.ring_if_due(now=self._now())
        return changed

    def _as_asked_here(self, judgement: Judgement) -> Judgement:
        """With SQL as this database understands it: a file knows no schemas."""
        if self._database.dialect.is_remote:
            return judgement
        asked = (
            replace(one.facts, sql=(one.facts.sql or "").replace(f"FROM {SCHEMA}.", "FROM ") or None)
            for one in judgement.findings
        )
        findings = tuple(replace(one, facts=facts) for one, facts in zip(judgement.findings, asked, strict=True))
        return replace(judgement, findings=findings)

    def _now(self) -> datetime | None:
        """The clock that was given; None for the database's own."""
        return None if self._clock is None else self._clock.now()

    # ── what a program says itself ────────────────────────────────────────────────────────────────────────────────────

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

        Opening a key again while its alert is open counts, replaces title and facts, and notifies nobody; a more urgent
        severity does.

        Args:
            key: What the alert is about, such as "nightly-export"; one alert per key is open at a time.
            severity: "P1", "P2" or "P3".
            title: One line that says what is wrong.
            facts: Names and values to show in the message, or `redrive.types.Facts`.
            pipeline: The pipeline or flow that it is about, for that one's routes, runbook and links.

        Returns:
            The alert; None where alerts are switched off here.

        Raises:
            ValueError: An argument cannot be used; nothing was stored.
            StoreError: The store cannot be written.
        """
        finding = custom_finding(key, severity=severity, title=title, facts=facts, pipeline=pipeline)
        if not self.settings.enabled:
            return None
        alert = self.ledger.open(finding, now=self._now())
        self.sender.ring()
        return alert

    # ── what people ask and decide ────────────────────────────────────────────────────────────────────────────────────

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
        """Alerts, the newest first; with the status "open", all that are not over."""
        return self.ledger.find(
            status=status, urgency=urgency, subject=subject, condition=condition, since=since, limit=limit
        )

    def get(self, alert_id: int) -> Alert:
        """One alert."""
        return self.ledger.get(alert_id)

    def sends(self, alert_id: int) -> list[Send]:
        """The messages about an alert, the oldest first."""
        return self.ledger.sends(alert_id)

    def unsent(self) -> list[Send]:
        """Messages that wait to be delivered, or could not be."""
        return self.ledger.unsent()

    def unconfigured(self) -> list[Send]:
        """Messages that wait for channels which the settings of this process do not have."""
        return self.ledger.unconfigured()

    @overload
    def acknowledge(self, alert_id: int, *, by: str, note: str | None = None) -> Alert: ...

    @overload
    def acknowledge(self, *, key: str, by: str, note: str | None = None) -> Alert | None: ...

    def acknowledge(
        self, alert_id: int | None = None, *, key: str | None = None, by: str, note: str | None = None
    ) -> Alert | None:
        """Acknowledge an alert: it is not repeated any more, unless it becomes more urgent.

        Args:
            alert_id: Its number.
            key: Instead of the number, the key that channels were given with its messages: for acknowledgements that
                come back from PagerDuty, Slack or another system.
            by: Who acknowledges it.
            note: What they say about it.

        Returns:
            The alert. With a key, None where no alert of this key is open: a late acknowledgement does no harm.
        """
        if (alert_id is None) is (key is None):
            raise TypeError("acknowledge needs the number of an alert, or key=")
        if alert_id is None:
            assert key is not None
            alert_id = self.ledger.open_id(key)
            if alert_id is None:
                return None
        alert = self.ledger.acknowledge(alert_id, by=by, note=note, now=self._now())
        self.sender.ring()
        return alert

    @overload
    def resolve(self, alert_id: int, *, by: str, note: str) -> Alert: ...

    @overload
    def resolve(self, alert_id: str, *, by: str | None = None, note: str | None = None) -> Alert | None: ...

    def resolve(self, alert_id: int | str, *, by: str | None = None, note: str | None = None) -> Alert | None:
        """Resolve an alert: by its number, as an operator, or by the key under which a program opened it.

        Args:
            alert_id: The number of any alert, or the key that was given to `open`.
            by: Who resolves it; required with a number.
            note: Why it is over; required with a number.

        Returns:
            The resolved alert. With a key, None where no alert of this key is open: resolving twice does no harm.
        """
        if isinstance(alert_id, str):
            if not self.settings.enabled:
                return None
            done = self.ledger.close_key(own_key(alert_id), by=by, note=note, now=self._now())
        elif by is None or note is None:
            raise TypeError("resolve(number) needs by= and note=; an alert of your own is resolved by its key, a text")
        else:
            done = self.ledger.close(alert_id, by=by, note=note, now=self._now())
        self.sender.ring()
        return done

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
        """Send nothing about some alerts for a while. They are recorded, and sent if they still hold when it ends.

        Args:
            seconds: How long it lasts.
            reason: Why, for those who wonder.
            subject: The name that alerts are about: of a pipeline, flow, service, table …
            condition: The condition, such as "slow".
            pipeline: The pipeline or flow that they are about, or that they concern alone.
            by: Who says so; the user of the process by default.

        Raises:
            AlertError: The silence cannot be used; nothing was stored.
        """
        if subject is not None:
            subject = self.ledger.stored_subject(subject)
        only = AlertFilter(subjects=_names(subject), conditions=_names(condition), pipelines=_names(pipeline))
        length = _length(seconds)
        check_silence(only, length, reason, conditions=self.settings.defined)
        return self._silences.add(only, length=length, reason=reason, by=by or actor(), now=self._now())

    def snooze(self, alert_id: int, *, seconds: float, reason: str = "snoozed", by: str | None = None) -> Silence:
        """Silence one alert, also an acknowledged one; it is sent again if it still holds when that ends."""
        length = _length(seconds)
        check_silence(AlertFilter(keys=(str(alert_id),)), length, reason)
        return self.ledger.snooze(alert_id, length=length, reason=reason, by=by or actor(), now=self._now())

    def end_silence(self, silence_id: int, *, by: str | None = None) -> Silence:
        """End a silence early: what still holds is sent at the next look of the watch; without one, by the next run."""
        return self._silences.end(silence_id, by=by or actor(), now=self._now())

    def silences(self, *, ended: bool = False, limit: int = 100) -> list[Silence]:
        """Silences, the newest first; with `ended`, those that are over, too."""
        return self._silences.find(ended=ended, now=self._now(), limit=limit)

    def silenced_until(self, alerts: Collection[Alert]) -> dict[int, datetime]:
        """Until when alerts are silenced, by silences and maintenance windows; without those that are not."""
        return self.ledger.silenced_until(alerts, now=self._now())

    def test(self, urgency: Severity | str, *, pipeline: str | None = None) -> Sequence[Send]:
        """Send a sample over the routes that are set for this urgency, now; what became of each message."""
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
        """Close the alerts of a pipeline, flow or service that is forgotten; return how many.

        Args:
            name: Its name.
            kinds: "pipeline", "flow" or "service".
            by: Who forgets it.
            run_ids: The runs of a flow.
            params: The parameters of a flow's runs.
        """
        own = [one for one in self.find(status=OPEN, limit=_MOST) if is_about(one, name, kinds)]
        for alert in own:
            self.resolve(alert.id, by=by, note=f"{alert.subject} was forgotten")
        for kind in (one for one in kinds if one != "service"):
            self._applied(withdraw(Subject(kind=kind, name=name), run_ids, params))
        return len(own)

    def close_unconfigured(self) -> list[Alert]:
        """Close alerts about conditions and tables that the settings name no more: nothing measures them."""
        is_configured = {
            "level:condition:": self.settings.defined.__contains__,
            "level:rows:": {one.name for one in self.settings.tables}.__contains__,
            "level:stale_table:": {one.name for one in self.settings.tables if one.time_column}.__contains__,
        }

        def is_unconfigured(evidence: str) -> bool:
            prefix = next((one for one in is_configured if evidence.startswith(one)), None)
            return prefix is not None and not is_configured[prefix](evidence.removeprefix(prefix))

        gone = [
            one
            for one in self.find(status=OPEN, limit=_MOST)
            if one.evidence and all(map(is_unconfigured, one.evidence))
        ]
        return [self.resolve(one.id, by="redrive watch", note="no longer configured") for one in gone]

    def close_unwatched(self, picture: LevelPicture) -> list[Alert]:
        """Close missed deadlines of pipelines that only the settings named, and that they name no more."""
        if any(one == "due" or one.startswith("due:") for one in picture.unknown):
            return []
        watched = {*picture.given_up, *(one.subject.ident for one in picture.due)}
        missed = self.find(status=OPEN, condition="sla_missed", limit=_MOST)
        unwatched = [
            one for one in missed if one.evidence == {f"sla:{one.subject.ident}"} and one.subject.ident not in watched
        ]
        return [self.resolve(one.id, by="redrive watch", note="no longer configured") for one in unwatched]

    def purge(self) -> int:
        """Forget alerts that have been over for longer than they are kept."""
        return self.ledger.purge(older_than=timedelta(days=self.settings.keep_days), now=self._now())

    def close(self) -> None:
        """Send what is due, for a moment, and let the rest be sent by others."""
        self._pace.close()
        self.sender.close()


def _names(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def _length(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise AlertError("a silence must last for more than 0 seconds, and a year at most") from None


def _of_its_own(judgement: Judgement) -> Judgement:
    """What is said of a run after which others have ended: only what is about this one alone."""

    def is_own(evidence: str) -> bool:
        return evidence.startswith(_OF_ITS_TASKS) or evidence.endswith(_OF_ITS_ROWS)

    return Judgement(
        findings=tuple(one for one in judgement.findings if is_own(one.evidence)),
        judged=frozenset(one for one in judgement.judged if is_own(one)),
        judged_under=frozenset(one for one in judgement.judged_under if one.startswith(_OF_ITS_TASKS)),
    )


def _run_of(event: Event) -> RunName | None:
    match event:
        case RunEnded(report=report):
            return RunName("pipeline", report.run_id)
        case FlowEnded(report=report):
            return RunName("flow", report.run_id)
        case TasksDead(run_id=run_id) | TaskFailed(run_id=run_id) | SlaAtRisk(run_id=run_id):
            return RunName("flow", run_id)
    return None
