"""What can be said of the services that are called: down, refusing, complaining, or getting worse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.alerts.conditions import found
from redrive.alerts.picture import Judgement, LevelPicture, Minute, ServicePicture
from redrive.alerts.sentences import clock, command, counted, short, span
from redrive.alerts.settings import AlertSettings, Thresholds
from redrive.notices import Facts, Finding, Subject

_MINUTE = timedelta(minutes=1)
_PROBES = (
    "its circuit breaker holds calls back and sends probes until it answers; runs that need it wait, or fail and go on "
    "from their checkpoints when they are started again"
)
_RENEW = (
    "calls that need it fail at once, and nothing renews it: put a valid credential in place, then run again what has "
    "failed"
)
_FIGURES = timedelta(minutes=75)
"""What the figures of the last hour may reach back to: the quarter of an hour under way, and four before it."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Minutes in a row in which a service failed. Minutes without attempts neither break it nor prove it."""

    begins: datetime
    ends: datetime
    """The end of the last minute that is known to be bad: what was not tried since may be well again, and where a
    circuit is open, its probes are known minutes, too."""
    attempts: int
    faults: int
    unbroken: bool
    """Nothing went well since."""

    @property
    def seconds(self) -> float:
        """How long it is known to have lasted."""
        return (self.ends - self.begins).total_seconds()

    def is_outage(self, limits: Thresholds) -> bool:
        """Whether it lasted for more than so long, and was more than a retry or two."""
        return self.seconds > limits.down_seconds and self.faults >= limits.down_faults


def stretches(minutes: Iterable[Minute], now: datetime, limits: Thresholds) -> Iterator[Stretch]:
    """The stretches of bad minutes, the oldest first."""
    bad: list[Minute] = []
    for one in sorted(minutes, key=lambda minute: minute.at):
        if one.attempts <= 0 or one.at > now:
            continue
        silent = bad and (one.at - bad[-1].at - _MINUTE).total_seconds() > limits.silence
        fails = one.faults > 0 and one.faults / one.attempts >= limits.down_share
        if bad and (silent or not fails):
            yield _stretch(bad, now, unbroken=False)
            bad = []
        if fails:
            bad.append(one)
    if bad:
        yield _stretch(bad, now, unbroken=True)


def _stretch(bad: list[Minute], now: datetime, *, unbroken: bool) -> Stretch:
    return Stretch(
        begins=bad[0].at,
        ends=min(bad[-1].at + _MINUTE, now),
        attempts=sum(one.attempts for one in bad),
        faults=sum(one.faults for one in bad),
        unbroken=unbroken,
    )


def _outages(service: ServicePicture, now: datetime, limits: Thresholds) -> list[Stretch]:
    return [one for one in stretches(service.minutes, now, limits) if one.is_outage(limits)]


def down(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Services that have failed by their own fault for minutes, and still do as far as is known."""
    limits, now = settings.thresholds, picture.now
    findings = []
    for service in _services(picture):
        outages = [one for one in _outages(service, now, limits) if one.unbroken]
        if not outages or (now - outages[0].ends).total_seconds() > limits.silence:
            continue
        stretch = outages[0]
        tried = f"{stretch.faults:,} of {counted(stretch.attempts, 'attempt')} since {clock(stretch.begins, now)}"
        findings.append(
            _found(
                "service_down",
                service,
                picture,
                f"{short(service.name)} has failed for {span(stretch.seconds)}: {tried}",
                next_step=_PROBES,
                measured={"failing for": stretch.seconds, "threshold": limits.down_seconds},
                since=stretch.begins,
            )
        )
    return _judgement(picture, "down", findings)


def refused(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Services that refused a credential for good, and that have answered nothing well since.

    Both are known by the quarter of an hour. Where both happened in the same one the refusal counts: a page too many is
    better than a credential that only some processes have.
    """
    limits, now = settings.thresholds, picture.now
    findings = []
    for service in _services(picture):
        at = service.last_auth_failure or (now if service.failed_auth else None)
        healed = at is not None and service.last_success is not None and service.last_success > at
        if at is None or healed or (now - at).total_seconds() >= limits.auth_silence:
            continue
        often = f" {counted(service.failed_auth, 'time')} within the hour" if service.failed_auth else ""
        findings.append(
            _found(
                "auth_refused",
                service,
                picture,
                f"{short(service.name)} refused its credential{often}, last before {clock(min(at, now), now)}",
                next_step=_RENEW,
                measured={"refused within the hour": service.failed_auth},
            )
        )
    return _judgement(picture, "auth", findings)


def client_errors(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Calls that a service has answered with a 4xx: a request that has to change.

    That a resource is not there (404, 410) is routine, unless nothing else is there either.
    """
    limit = settings.thresholds.client_errors
    refused_calls = {
        service: service.failed_4xx + (0 if service.successes else service.failed_404) for service in _services(picture)
    }
    findings = [
        _found(
            "client_errors",
            service,
            picture,
            f"{short(service.name)} answered {counted(count, 'call')} with a 4xx within the hour",
            next_step="these calls are not repeated: the request, or what it asks for, has to change",
            measured={"calls within the hour": count, "threshold": limit},
        )
        for service, count in refused_calls.items()
        if count >= max(1, limit)
    ]
    return _judgement(picture, "4xx", findings)


def server_errors(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Services of which three calls in a row ended in an answer 5xx; an outage is reported as that."""
    limits, now = settings.thresholds, picture.now
    findings, explained = [], set()
    for service in _services(picture):
        if any(now - one.ends < _FIGURES for one in _outages(service, now, limits)):
            explained.add(service.name)
        elif service.streaks_5xx >= max(1, limits.server_errors):
            often = "" if service.streaks_5xx == 1 else f", {counted(service.streaks_5xx, 'time')} within the hour"
            findings.append(
                _found(
                    "server_errors",
                    service,
                    picture,
                    f"{short(service.name)} answered three calls in a row with a 5xx{often}",
                    next_step="their retries are exhausted: run again what has failed, or replay its dead letters",
                    measured={"times within the hour": service.streaks_5xx, "threshold": limits.server_errors},
                )
            )
    return _judgement(picture, "5xx", findings, leaving=explained)


def retries(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Services that need more retries for a success than the day before; those of an outage are told as that."""
    limits, now = settings.thresholds, picture.now
    findings, explained = [], set()
    for service in _services(picture):
        if any(now - one.ends < _FIGURES for one in _outages(service, now, limits)):
            explained.add(service.name)
            continue
        least = max(1, limits.retries_calls)
        if service.successes < least or service.successes_before < least:
            continue
        mean, before = service.retries / service.successes, service.retries_before / service.successes_before
        if mean < limits.retries_least or mean <= limits.retries_rise * before:
            continue
        findings.append(
            _found(
                "retries_rising",
                service,
                picture,
                f"{short(service.name)} takes {mean:.2f} retries for a success, {before:.2f} the day before",
                next_step="retries heal it so far; where more fail than the retry budget lets pass, calls fail",
                measured={
                    "retries per success": mean,
                    "the day before": before,
                    "threshold": limits.retries_rise * before,
                },
                persist=settings.persist,
            )
        )
    return _judgement(picture, "retries", findings, leaving=explained)


def _services(picture: LevelPicture) -> list[ServicePicture]:
    return [one for one in picture.services if picture.knows("services", one.name)]


_KEYS = {
    "service_down": "down",
    "auth_refused": "auth",
    "client_errors": "4xx",
    "server_errors": "5xx",
    "retries_rising": "retries",
}


def _found(
    condition: str,
    service: ServicePicture,
    picture: LevelPicture,
    title: str,
    *,
    next_step: str,
    measured: dict[str, float],
    persist: float = 0.0,
    since: datetime | None = None,
) -> Finding:
    suffering = {run.subject.name for run in picture.running if run.error_service == service.name}
    facts = Facts(
        measured=measured,
        affected=tuple(sorted(suffering | set(service.used_by))),
        commands=(command("services", "show", service.name),),
        next_step=next_step,
    )
    what = _KEYS[condition]
    return found(
        condition,
        Subject(kind="service", name=service.name),
        title,
        facts,
        key=f"service:{service.name}:{what}",
        evidence=f"level:{what}:{service.name}",
        since=since,
        persist=persist,
    )


def _judgement(
    picture: LevelPicture, what: str, findings: list[Finding], *, leaving: set[str] | None = None
) -> Judgement:
    names = [service.name for service in picture.services]
    judged = picture.judged("services", f"level:{what}:", names, leaving=leaving or ())
    return Judgement(findings=tuple(findings)) + judged
