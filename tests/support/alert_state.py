"""Alerts without a store: findings, their states, and the messages sent."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from redrive.alerts.conditions import NO_LONGER
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.snapshot import Judgement
from redrive.alerts.lifecycle import state_machine
from redrive.alerts.lifecycle.change_set import apply_judgement
from redrive.alerts.lifecycle.evidence import RECOVERED
from redrive.model.alerts import Finding, Severity, Subject

NOON = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
SETTINGS = AlertSettings()
P1, P2, P3 = Severity.P1, Severity.P2, Severity.P3


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def finding(evidence="run:vendor:failed", urgency=P2, *, key="run:vendor", **options):
    options.setdefault("condition", "retries_exhausted")
    options.setdefault("subject", Subject(kind="pipeline", name="vendor"))
    options.setdefault("title", f"{evidence} says {urgency}")
    return Finding(key=key, evidence=evidence, urgency=urgency, **options)


class Books:
    """Alerts as a store would keep them, and all messages."""

    def __init__(self, settings=SETTINGS):
        self.settings = settings
        self.cases, self.over, self.told = {}, [], []
        self._serial, self._returns = 0, {}

    def judge(self, *findings, judged=(), under=(), at=0.0):
        judged = frozenset({*judged, *(one.evidence for one in findings)})
        judgement = Judgement(findings=findings, judged=judged, judged_under=frozenset(under))
        now = after(at)
        changes = apply_judgement(
            self.cases,
            judgement,
            now,
            self.settings,
            is_known=lambda found: self._is_known(found, now),
            returns=lambda key: self._came_back(key, now),
        )
        return self._take(changes, now)

    def pass_time(self, at):
        now = after(at)
        return self._take(
            {key: state_machine.pass_time(case, now, self.settings) for key, case in self.cases.items()}, now
        )

    def decide(self, key, step, at, **options):
        now = after(at)
        return self._take({key: step(self.cases[key], now, **options)}, now)

    def troubles(self, key, now):
        """When alerts of a key stood."""
        alerts = [*self.over, *(case.alert for case in self.cases.values())]
        return [(one.since, one.resolved_at or now) for one in alerts if one.key == key and one.opened_at is not None]

    def _is_known(self, found, now):
        same = [one for one in self.over if (one.key, one.condition) == (found.key, found.condition)]
        return found.key not in self.cases and any(
            one.facts.run_id == found.facts.run_id
            or (found.condition == RECOVERED and one.opened_at >= now - timedelta(days=1))
            for one in same
        )

    def _came_back(self, key, now):
        last = next((one for one in reversed(self.over) if one.key == key and one.opened_at is not None), None)
        lately = now - timedelta(seconds=self.settings.thresholds.flap_seconds)
        if last is None or last.resolution != NO_LONGER or last.resolved_at < lately:
            return 0
        return self._returns[last.id] + 1

    def _take(self, changes, now):
        told = []
        for key, change in changes.items():
            case = change.record
            self.cases.pop(key, None)
            if case is None:
                continue
            if case.alert.id == state_machine.UNSAVED:
                self._serial += 1
                case = replace(case, alert=replace(case.alert, id=self._serial))
            if case.alert.is_over:
                self.over.append(case.alert)
                self._returns[case.alert.id] = case.returns
            else:
                self.cases[key] = case
            told += [(case.alert.id, what, now) for what in change.messages]
        self.told += told
        return [what for _, what, _ in told]

    def alert(self, key="run:vendor"):
        return self.cases[key].alert
