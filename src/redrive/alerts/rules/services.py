"""Rules on services: outages, rejected credentials, 4xx and 5xx responses, failing calls and rising retries.

The rules read the minutes and quarters of an hour that all processes add to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import sqrt

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings, Thresholds
from redrive.alerts.delivery.format import clock, command, counted, percent, short, span
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot, Minute, ServiceSnapshot, Window
from redrive.calls.metrics.window import MINUTES_KEPT
from redrive.model.alerts import Facts, Finding, Subject

_MINUTE = timedelta(minutes=1)
_WAITING = "runs that need it wait, or fail and resume from their checkpoints when they are restarted"
_RENEW = (
    "calls that need it fail at once, and nothing renews it: put a valid credential in place, then run again what has "
    "failed"
)
_REFUSAL = timedelta(minutes=15)
"""Minimum time for which a rejected credential counts, even if other calls succeed."""
_FIGURES = 75 * 60.0
"""Seconds that the figures of the last hour may reach back: the current quarter of an hour and the four before it."""
_FLAPPING = 0.25
"""Share of the minutes with attempts that must be bad in a service that flaps."""
_WELL_AGAIN = 2.0
"""Multiple of `flap_seconds` after which an outage of a flapping, rarely called service is over."""
_OUTAGE = timedelta(hours=2)
"""Maximum age of an outage that is searched; a service that flaps for days also meets other conditions."""
_SEEN_WELL = 30
"""Number of good minutes with attempts after which a flapping service counts as up."""
_HYSTERESIS = 0.5
"""Share of the distance from the usual value to the limit above which rising retries still count."""
_LASTING = 3  # quarters of an hour
_DAYS_LEAST = 3  # days that are needed to estimate how much days differ


@dataclass(frozen=True, slots=True)
class FailurePeriod:
    """Consecutive minutes in which a service failed. Minutes without attempts are ignored."""

    begins: datetime
    ends: datetime
    """The end of the last minute that is known to be bad. Probes of an open circuit are attempts, too."""
    last: datetime
    """The start of the last minute."""
    minutes: int
    """The number of minutes with attempts."""
    attempts: int
    faults: int
    unbroken: bool
    """Whether no attempt has succeeded since."""

    @property
    def seconds(self) -> float:
        """Return the known duration."""
        return (self.ends - self.begins).total_seconds()

    def is_outage(self, limits: Thresholds) -> bool:
        """Return whether it lasted longer than `down_seconds` with at least `down_faults` faults."""
        return self.seconds > limits.down_seconds and self.faults >= limits.down_faults


def failure_periods(minutes: Iterable[Minute], now: datetime, limits: Thresholds) -> Iterator[FailurePeriod]:
    """Return the periods of bad minutes, the oldest first."""
    bad: list[Minute] = []
    for minute in sorted(minutes, key=lambda minute: minute.at):
        if minute.attempts <= 0 or minute.at > now:
            continue
        silent = bad and (minute.at - bad[-1].at - _MINUTE).total_seconds() > limits.silence
        fails = minute.faults > 0 and minute.faults / minute.attempts >= limits.down_share
        if bad and (silent or not fails):
            yield _failure_period(bad, now, unbroken=False)
            bad = []
        if fails:
            bad.append(minute)
    if bad:
        yield _failure_period(bad, now, unbroken=True)


def _failure_period(bad: list[Minute], now: datetime, *, unbroken: bool) -> FailurePeriod:
    return FailurePeriod(
        begins=bad[0].at,
        ends=min(bad[-1].at + _MINUTE, now),
        last=bad[-1].at,
        minutes=len(bad),
        attempts=sum(minute.attempts for minute in bad),
        faults=sum(minute.faults for minute in bad),
        unbroken=unbroken,
    )


@dataclass(frozen=True, slots=True)
class Outage:
    """Failure periods that form an outage. It is over when the service has not failed for `flap_seconds`."""

    periods: tuple[FailurePeriod, ...]
    attempts: int
    """All attempts from start to end, including those of good minutes."""

    @property
    def begins(self) -> datetime:
        """Return the start of the first failure."""
        return self.periods[0].begins

    @property
    def ends(self) -> datetime:
        """Return the end of the last known failure."""
        return self.periods[-1].ends

    @property
    def faults(self) -> int:
        """Return the number of failed attempts."""
        return sum(period.faults for period in self.periods)

    def title(self, name: str, now: datetime) -> str:
        """Return the title of the alert."""
        last, times = self.periods[-1], len(self.periods)
        since, share = clock(self.begins, now), f"{self.faults:,} of {counted(self.attempts, 'attempt')}"
        if times > 1:
            return f"{name} fails on and off: {times:,} times since {since}, last at {clock(self.ends, now)}: {share}"
        if last.unbroken:
            return f"{name} has failed for {span(last.seconds)}: {share} since {since}"
        return f"{name} had failed for {span(last.seconds)} since {since}: {share}; it answers again"


def outage(
    minutes: Iterable[Minute], now: datetime, limits: Thresholds, *, within: timedelta = _OUTAGE
) -> Outage | None:
    """Return the last outage, if it still counts: the service is down, was so not long ago, or fails on and off.

    A short period in which half of the attempts succeeded does not count: in a rarely called service, that is one
    failed attempt and a successful retry.
    """
    known = [minute for minute in minutes if minute.attempts > 0 and now - within <= minute.at <= now]
    chain: list[FailurePeriod] = []
    for period in failure_periods(known, now, limits):
        if not period.is_outage(limits) and 2 * period.faults <= period.attempts:
            continue
        if chain and (period.begins - chain[-1].ends).total_seconds() > limits.flap_seconds:
            chain = []
        chain.append(period)
    if not chain:
        return None
    lasts = limits.silence if chain[-1].unbroken else limits.flap_seconds
    if (now - chain[-1].ends).total_seconds() > lasts:
        return None
    if not any(period.is_outage(limits) for period in chain) and not _flaps(chain, known, limits):
        return None
    return Outage(
        tuple(chain), sum(minute.attempts for minute in known if chain[0].begins <= minute.at <= chain[-1].last)
    )


def _flaps(chain: Sequence[FailurePeriod], minutes: Iterable[Minute], limits: Thresholds) -> bool:
    """Return whether the service failed `flap_times` times, and for a large part of the time between."""
    times, known = max(2, limits.flap_times), [minute.at for minute in minutes if minute.attempts > 0]
    for start in range(len(chain) - times + 1):
        periods = chain[start : start + times]
        between = sum(periods[0].begins <= at <= periods[-1].last for at in known)
        bad, faults = sum(period.minutes for period in periods), sum(period.faults for period in periods)
        if faults >= limits.down_faults and bad >= _FLAPPING * between:
            return True
    return False


def _probes(service: ServiceSnapshot, now: datetime) -> str:
    when = "" if service.next_probe is None else f", the next at {clock(service.next_probe, now)}"
    return f"its circuit breaker holds calls back and sends probes until it answers{when}; {_WAITING}"


def down(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return services that have failed for minutes, or repeatedly, and have not recovered for long enough."""
    now = snapshot.now
    findings, left = [], set()
    for service in _services(snapshot):
        limits = settings.limits_of(service.name)
        last = outage(service.minutes, now, limits)
        if last is None:
            if _may_fail_again(service, now, limits):
                left.add(service.name)
            continue
        longest = max(period.seconds for period in last.periods)
        findings.append(
            _make_finding(
                "service_down",
                service,
                snapshot,
                last.title(short(service.name), now),
                next_step=_probes(service, now),
                measured={"failing for": longest, "threshold": limits.down_seconds, "times": len(last.periods)},
                since=last.begins,
            )
        )
    return _judgement(snapshot, "down", findings, leaving=left)


def _may_fail_again(service: ServiceSnapshot, now: datetime, limits: Thresholds) -> bool:
    """Return whether a flapping service had few calls since its last failure, so that its alert stays open.

    A service that is up and down every 11 minutes shows to a pipeline that runs every 10 for an hour, and then not for
    more than an hour.
    """
    longer = replace(limits, flap_seconds=_WELL_AGAIN * limits.flap_seconds)
    last = outage(service.minutes, now, longer, within=timedelta(seconds=MINUTES_KEPT))
    if last is None or not _flaps(last.periods, service.minutes, limits):
        return False
    return sum(last.ends <= minute.at <= now and minute.attempts > 0 for minute in service.minutes) < _SEEN_WELL


def refused(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return services that permanently rejected a credential and have not answered successfully since.

    A rejection counts for at least a quarter of an hour even if other calls succeed, because it may be that only some
    processes have a valid credential.
    """
    now = snapshot.now
    findings = []
    for service in _services(snapshot):
        limits = settings.limits_of(service.name)
        at = service.last_auth_failure or (now if service.failed_auth else None)
        recovered = at is not None and service.last_success is not None and service.last_success >= at
        if at is None or (recovered and now - at >= _REFUSAL) or (now - at).total_seconds() >= limits.auth_silence:
            continue
        often = f" {counted(service.failed_auth, 'time')} within the hour" if service.failed_auth else ""
        findings.append(
            _make_finding(
                "auth_refused",
                service,
                snapshot,
                f"{short(service.name)} refused its credential{often}, last at {clock(min(at, now), now)}",
                next_step=_RENEW,
                measured={"refused within the hour": service.failed_auth},
            )
        )
    return _judgement(snapshot, "auth", findings)


def client_errors(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return services that answered calls with a 4xx response, so that the request must be changed.

    That a resource is not there (404, 410) is routine, unless nothing else is there either.
    """
    refused_calls = {
        service: service.failed_4xx + (0 if service.hour.successes else service.failed_404)
        for service in _services(snapshot)
    }
    findings = [
        _make_finding(
            "client_errors",
            service,
            snapshot,
            f"{short(service.name)} answered {counted(count, 'call')} with a 4xx within the hour",
            next_step="these calls are not retried: the request, or what it asks for, has to change",
            measured={"calls within the hour": count, "threshold": settings.limits_of(service.name).client_errors},
        )
        for service, count in refused_calls.items()
        if count >= max(1, settings.limits_of(service.name).client_errors)
    ]
    return _judgement(snapshot, "4xx", findings)


def server_errors(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return services with three consecutive 5xx responses, unless an outage is reported."""
    findings, explained = [], _services_with_outage(snapshot, settings)
    for service in _services(snapshot):
        limits = settings.limits_of(service.name)
        if service.name not in explained and service.streaks_5xx >= max(1, limits.server_errors):
            often = "" if service.streaks_5xx == 1 else f", {counted(service.streaks_5xx, 'time')} within the hour"
            findings.append(
                _make_finding(
                    "server_errors",
                    service,
                    snapshot,
                    f"{short(service.name)} answered three calls in a row with a 5xx{often}",
                    next_step="their retries are exhausted: run again what has failed, or replay its dead letters",
                    measured={"times within the hour": service.streaks_5xx, "threshold": limits.server_errors},
                )
            )
    return _judgement(snapshot, "5xx", findings, leaving=explained)


def calls_failing(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return services with more failed calls than usual despite retries, unless an outage is reported."""
    findings, left = [], _services_with_outage(snapshot, settings)
    for service in _services(snapshot):
        limits = settings.limits_of(service.name)
        calls, failed = service.hour.calls, service.hour.failed
        if service.name in left or failed <= 0 or failed < limits.calls_failed * calls:
            continue
        if failed < limits.calls_failed_least:
            left.add(service.name)
            continue
        share, usual = failed / max(1, calls), sum(service.usual, Window())
        if usual.calls >= max(1, limits.retries_calls):
            past = [(window.failed, window.calls) for window in service.usual]
            if failed <= _chance(past, calls, limits.retries_spreads):
                continue
        findings.append(
            _make_finding(
                "calls_failing",
                service,
                snapshot,
                f"{short(service.name)} fails {percent(share)} of calls: {failed:,} of {counted(calls, 'call')} within "
                "the hour",
                next_step=(
                    "retries do not suffice: these calls have failed for their callers. See what the service answers, "
                    "then run again what has failed, or replay its dead letters"
                ),
                measured={"share of failed calls": share, "threshold": limits.calls_failed},
                persist=settings.persist,
            )
        )
    return _judgement(snapshot, "calls", findings, leaving=left)


def retries(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return services that need more retries for each success than is usual at this hour.

    Retries during an outage are reported as the outage. If many retries are needed, but there are too few calls to
    judge or no baseline, an open alert stays open. It also stays open while retries are below the limit but clearly
    above the usual value, because values near the limit alternate.
    """
    findings, left = [], _services_with_outage(snapshot, settings)
    for service in _services(snapshot):
        limits = settings.limits_of(service.name)
        now, usual = service.hour, sum(service.usual, Window())
        least = max(1, limits.retries_calls)
        if service.name in left or now.retries <= 0:
            continue
        is_many = now.retries >= limits.retries_least * now.successes
        if now.successes < least or usual.successes < least:
            if is_many:
                left.add(service.name)
            continue
        mean, before = now.retries / now.successes, usual.retries / usual.successes
        past = [(window.retries, window.successes) for window in service.usual]
        limit = max(limits.retries_rise * before, _chance(past, now.successes, limits.retries_spreads) / now.successes)
        if not is_many or mean <= limit or not _lasts(service.quarters, limits.retries_rise * before):
            if mean - before > _HYSTERESIS * (max(limit, limits.retries_least) - before):
                left.add(service.name)
            continue
        findings.append(
            _make_finding(
                "retries_rising",
                service,
                snapshot,
                f"{short(service.name)} takes {mean:.2f} retries for a success; {before:.2f} is usual at this hour",
                next_step="retries suffice so far; calls fail once they need more than the retry budget allows",
                measured={"retries per success": mean, "usual": before, "threshold": limit},
                persist=settings.persist,
            )
        )
    return _judgement(snapshot, "retries", findings, leaving=left)


def _chance(past: Sequence[tuple[int, int]], total: int, spreads: float) -> float:
    """Return how many events of a total may still be chance, by what they were on earlier days.

    Counts vary by the square root of the expected value, more if earlier days have few calls, and as much as they did
    from day to day. The last term is for small counts, whose distribution is skewed: (√e + s/2)² = e + s·√e + s²/4.
    `past` has, for each day, the number of events and the total.
    """
    days = [(count, of) for count, of in past if of > 0]
    known = sum(of for _, of in days)
    usual = sum(count for count, _ in days) / known
    expected, from_day_to_day = total * usual, 0.0
    if len(days) >= _DAYS_LEAST:  # weighted by calls, because a day with a quarter of an hour means little
        squares = sum(of * (count / of - usual) ** 2 for count, of in days) / known
        from_day_to_day = total * sqrt(squares * len(days) / (len(days) - 1))
    by_chance = sqrt(expected * (1 + total / known))
    return expected + spreads * max(by_chance, from_day_to_day) + spreads**2 / 4


def _lasts(quarters: Sequence[Window], limit: float) -> bool:
    """Return whether retries are above the limit for most of the hour."""
    called = [quarter for quarter in quarters if quarter.successes > 0]
    return sum(quarter.retries > limit * quarter.successes for quarter in called) >= min(_LASTING, len(called))


def _services_with_outage(snapshot: LevelSnapshot, settings: AlertSettings) -> set[str]:
    """Return services whose figures of the last hour are explained by an outage, which has its own alert."""
    now, names = snapshot.now, set()
    for service in _services(snapshot):
        limits = settings.limits_of(service.name)
        last = outage(service.minutes, now, replace(limits, flap_seconds=max(limits.flap_seconds, _FIGURES)))
        if last is not None and (now - last.ends).total_seconds() < _FIGURES:
            names.add(service.name)
    return names


def _services(snapshot: LevelSnapshot) -> list[ServiceSnapshot]:
    return [service for service in snapshot.services if snapshot.knows("services", service.name)]


# The suffix of the alert key for each condition. Conditions about failures of the service share one alert.
_ABOUT = {
    "service_down": "down",
    "auth_refused": "auth",
    "client_errors": "4xx",
    "server_errors": "5xx",
    "calls_failing": "calls",
    "retries_rising": "retries",
}


def _make_finding(
    condition: str,
    service: ServiceSnapshot,
    snapshot: LevelSnapshot,
    title: str,
    *,
    next_step: str,
    measured: dict[str, float],
    persist: float = 0.0,
    since: datetime | None = None,
) -> Finding:
    suffering = {run.subject.name for run in snapshot.running if run.error_service == service.name}
    facts = Facts(
        measured=measured,
        affected=tuple(sorted(suffering | set(service.used_by))),
        commands=(command("services", "show", service.name),),
        next_step=next_step,
    )
    what = _ABOUT[condition]
    cause = what if what in ("auth", "4xx") else "down"
    return make_finding(
        condition,
        Subject(kind="service", name=service.name),
        title,
        facts,
        key=f"service:{service.name}:{cause}",
        evidence=f"level:{what}:{service.name}",
        since=since,
        persist=persist,
    )


def _judgement(
    snapshot: LevelSnapshot, what: str, findings: list[Finding], *, leaving: set[str] | None = None
) -> Judgement:
    names = [service.name for service in snapshot.services]
    judged = snapshot.judged("services", f"level:{what}:", names, leaving=leaving or ())
    return Judgement(findings=tuple(findings)) + judged
