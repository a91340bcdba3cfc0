"""`redrive services`: attempts, latency, circuits and keys of services, as the processes of a store share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive._internal.masking import mask
from redrive.cli.command import command, noun
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import ago, at, counted, latency, percent, style_of_circuit
from redrive.cli.output import Column, Output, iso
from redrive.cli.service_chart import chart, day_start
from redrive.cli.session import Session
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.store.repositories.service_state import ServiceState
    from redrive.store.repositories.services import EndpointSums, ServiceWindow
    from redrive.store.store import Store

app = noun("List services with their circuits and exhausted keys; reset them.", bare="ls")


def _in_words(state: str) -> str:
    return state.replace("_", "-")


_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the service.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """The stored data of one service."""

    state: ServiceState
    day: ServiceWindow
    """The last day as a whole."""
    windows: Sequence[ServiceWindow]
    """The last day by quarters of an hour."""

    @property
    def name(self) -> str:
        """Return the name with secrets masked."""
        return mask(self.state.service)

    @property
    def has_trouble(self) -> bool:
        """Return whether its circuit is not closed, a key is exhausted, or calls failed within the last day."""
        from redrive.policy.breaker import CircuitState

        return self.state.state != CircuitState.CLOSED or bool(self.state.drained) or self.day.calls_failed > 0


def all_services(store: Store, now: datetime) -> list[ServiceFacts]:
    """Return what the store knows of each service."""
    from redrive.policy.breaker import CircuitState
    from redrive.store.repositories.service_state import ServiceState
    from redrive.store.repositories.services import merge_windows

    since = day_start(now)
    states = {service.service: service for service in store.shared.services()}
    windows: dict[str, list[ServiceWindow]] = {name: [] for name in {*store.services.names(), *states}}
    for window in store.services.windows(since=since):
        windows[window.service].append(window)

    def silent(name: str) -> ServiceState:
        return ServiceState(name, CircuitState.CLOSED, (), everywhere=False, retry_in=None, changed_at=None, drained=())

    return [
        ServiceFacts(
            state=states.get(name) or silent(name),
            day=merge_windows(windows[name], service=name, at=since),
            windows=windows[name],
        )
        for name in sorted(windows)
    ]


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────

# A narrow terminal keeps what is wrong.
_COLUMNS = (
    Column(title="service", least=12),
    Column(title="circuit", show=_in_words, style=style_of_circuit),
    Column(title="attempts", right=True),
    Column(title="success", show=lambda rate: "" if rate is None else percent(rate), right=True),
    Column(title="failures", right=True),
    Column(title="retries", show=lambda mean: "" if mean is None else f"{mean:.2f}", right=True, drop=4),
    Column(title="p95", show=lambda seconds: "" if seconds is None else latency(seconds), right=True, drop=3),
    Column(title="machines", show=", ".join, drop=5, least=12),
    Column(title="next probe", show=ago, drop=2),
    Column(title="used-up keys", heading="exhausted keys", show=", ".join, drop=1, least=12),
    Column(title="last word", heading="last report", show=ago, drop=6),
)


@command(app)
def ls(session: Session) -> None:
    """List services with their last day, open circuits and exhausted keys.

    Examples: redrive services ls; redrive services ls --json
    """
    with session.opened() as store:
        found = all_services(store, datetime.now(UTC))
    if session.out.json:
        session.out.document([service_document(service) for service in found])
    else:
        session.out.table(_COLUMNS, [_row(service) for service in found])
    if not found:
        session.out.say("no services recorded yet")


def _row(known: ServiceFacts) -> list[Any]:
    state, day = known.state, known.day
    return [
        known.name,
        state.state,
        day.attempts,
        _rounded(day.success_rate),
        day.failed_attempts,
        _rounded(day.mean_retries),
        _rounded(day.p95),
        state.hosts,
        _moment(state.retry_in),
        [f"…{key.key_id}" for key in state.drained],
        state.changed_at,
    ]


# ── one of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


@command(app)
def show(
    session: Session,
    name: _Name,
    quarters: Annotated[
        bool, typer.Option("--quarters", help="Print the last day as a table by quarters of an hour.")
    ] = False,
    endpoints: Annotated[
        bool, typer.Option("--endpoints", help="Print the last day as a table by functions and routes.")
    ] = False,
) -> None:
    """Show one service: its last day as a chart, its circuit and its exhausted keys.

    Examples: redrive services show shipfast; redrive services show shipfast --endpoints
    """
    now = datetime.now(UTC)
    with session.opened() as store:
        found = _of_name(all_services(store, now), name)
        by_endpoint = store.services.endpoints(found.state.service, since=day_start(now))
    out = session.out
    if out.json:
        out.document(
            {
                **service_document(found),
                "windows": [_window(window) for window in found.windows],
                "endpoints": [dict(zip(_ENDPOINT_NAMES, _endpoint(sums), strict=True)) for sums in by_endpoint],
            }
        )
    elif endpoints:
        out.table(_ENDPOINT_COLUMNS, [_endpoint(sums) for sums in by_endpoint])
    elif quarters:
        out.table(_QUARTER_COLUMNS, [_quarter(window) for window in found.windows])
    else:
        rows = [row for row in _facts(found, out) if row[1] not in ("", None)]
        out.table((Column(title="what"), Column(title="value", least=20)), rows)
        if out.terminal and found.windows:
            out.text("\n" + "\n".join(chart(found.windows, now, width=get_terminal_size().columns)))


def _facts(known: ServiceFacts, out: Output) -> list[tuple[str, Any]]:
    state, day, people = known.state, known.day, out.terminal
    probe = _moment(state.retry_in)
    failures = {kind: count for kind, count in day.failures.items() if count}
    return [
        ("service", known.name),
        ("circuit", _in_words(state.state) if people else state.state),
        ("opened by", ", ".join(state.hosts)),
        ("open everywhere", state.everywhere),
        ("next probe", at(probe) if people else probe),
        ("last report", at(state.changed_at) if people else state.changed_at),
        *((f"key …{key.key_id} exhausted until", at(key.until) if people else key.until) for key in state.drained),
        ("calls of the last day", _number(day.calls, people)),
        ("attempts", _number(day.attempts, people)),
        ("success", _share(day.success_rate, people)),
        *((f"{_how(kind)}, {kind}", _number(count, people)) for kind, count in failures.items()),
        ("calls that failed", _number(day.calls_failed, people) if day.calls_failed else None),
        ("answered by a fallback", _number(day.fallbacks, people) if day.fallbacks else None),
        ("retries per success", _rounded(day.mean_retries, 2 if people else 6)),
        ("median, p95, p99" if people else "p50", _latency(day) if people else _rounded(day.p50)),
        ("p95", None if people else _rounded(day.p95)),
        ("p99", None if people else _rounded(day.p99)),
        ("circuit not closed for", _open(day.open_seconds, people) if day.open_seconds else None),
    ]


def _how(outcome: str) -> str:
    """Return how attempts of this outcome are named; what was not sent did not fail."""
    return "not sent" if outcome in ("circuit_open", "no_key_left") else "failed"


def _number(count: int, people: bool) -> Any:
    return f"{count:,}" if people else count


def _share(rate: float | None, people: bool) -> Any:
    return None if rate is None else percent(rate) if people else _rounded(rate)


def _latency(day: ServiceWindow) -> str:
    return ", ".join(latency(seconds) for seconds in (day.p50, day.p95, day.p99) if seconds is not None)


def _open(seconds: float, people: bool) -> Any:
    return f"{format_duration(seconds)}, over all processes" if people else _rounded(seconds)


_ENDPOINT_COLUMNS = (
    Column(title="endpoint", least=20),
    Column(title="calls", right=True, drop=4),
    Column(title="attempts", right=True),
    Column(title="success", show=lambda rate: "" if rate is None else percent(rate), right=True),
    Column(title="faults", right=True),
    Column(title="calls failed", right=True, drop=2),
    Column(title="4xx", right=True, drop=5),
    Column(title="404", right=True, drop=6),
    Column(title="mean", show=lambda seconds: "" if seconds is None else latency(seconds), right=True, drop=3),
)
_ENDPOINT_NAMES = (
    *("endpoint", "calls", "attempts", "success_rate", "faults", "calls_failed", "failed_4xx", "failed_404"),
    "mean_seconds",
)


def _endpoint(one: EndpointSums) -> list[Any]:
    return [
        *(mask(one.endpoint), one.calls, one.attempts, _rounded(one.success_rate), one.faults, one.calls_failed),
        *(one.failed_4xx, one.failed_404, _rounded(one.mean_seconds)),
    ]


_QUARTER_COLUMNS = (
    Column(title="at", show=lambda moment: f"{moment:%m-%d %H:%M}"),
    Column(title="calls", right=True, drop=5),
    Column(title="attempts", right=True),
    Column(title="successes", right=True, drop=6),
    Column(title="failures", right=True),
    Column(title="retries", right=True, drop=4),
    Column(title="calls failed", right=True, drop=3),
    Column(title="fallbacks", right=True, drop=7),
    Column(title="p50", show=lambda seconds: "" if seconds is None else latency(seconds), right=True, drop=8),
    Column(title="p95", show=lambda seconds: "" if seconds is None else latency(seconds), right=True, drop=1),
    Column(title="p99", show=lambda seconds: "" if seconds is None else latency(seconds), right=True, drop=9),
    Column(title="open seconds", show=lambda seconds: f"{seconds:,.0f}" if seconds else "", right=True, drop=2),
)


def _quarter(one: ServiceWindow) -> list[Any]:
    return [
        *(one.at, one.calls, one.attempts, one.successes, one.failed_attempts, one.retries),
        *(one.calls_failed, one.fallbacks, _rounded(one.p50), _rounded(one.p95), _rounded(one.p99)),
        _rounded(one.open_seconds),
    ]


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@command(app)
def reset(
    session: Session,
    name: _Name,
    keys: Annotated[bool, typer.Option("--keys", help="Also use its exhausted keys again.")] = False,
) -> None:
    """Close the circuit of a service in every process that shares the store.

    Examples: redrive services reset shipfast; redrive services reset shipfast --keys
    """
    with session.opened() as store:
        resting = any(service.drained for service in store.shared.services() if service.service == name)
        if not resting:
            _of_name(all_services(store, datetime.now(UTC)), name)  # refuses a name that nothing is known of
        known = store.shared.reset(name, keys=keys)
    if session.out.json:
        session.out.document({"service": name, "reset": known, "keys": keys})
    done = f"closed the circuit of {name}" + (" and released its exhausted keys" if keys else "")
    session.out.say(done if known else f"nothing to reset for service {name!r}. `redrive services ls` lists services")
    if resting and not keys:
        session.out.say("its exhausted keys stay exhausted; --keys releases them")


@command(app)
def forget(
    session: Session,
    name: _Name,
    go: Annotated[bool, typer.Option("--go", help="Execute; without this, a dry run.")] = False,
) -> None:
    """Remove what is stored of a retired service: measurements, circuits, exhausted keys, metrics and alerts.

    A process that still calls it records it again.

    Examples: redrive services forget shipfast; redrive services forget shipfast --go
    """
    from redrive.dlq.status import actor
    from redrive.store.retention.forget import count_service, forget_service

    with session.opened() as store:
        rows, closed = count_service(store.database, name), 0
        if not rows:
            _of_name(all_services(store, datetime.now(UTC)), name)
        if go:
            forget_service(store.database, name)
            closed = store.alerts.retire(name, ["service"], by=actor())
    out = session.out
    if out.json:
        out.document({"service": name, "rows": rows, "alerts_closed": closed, "dry_run": not go})
    if go:
        out.say(f"forgot service {name}: {counted(rows, 'row')} of measurements; {counted(closed, 'alert')} closed")
    else:
        out.say(f"would forget service {name}: {counted(rows, 'row')} of measurements. Nothing was changed")
        out.next_steps([("execute", session.again_with("--go"))])


def _of_name(found: list[ServiceFacts], name: str) -> ServiceFacts:
    for one in found:
        if one.state.service == name:
            return one
    listed = f". Known services: {', '.join(service.name for service in found)}" if found else ""
    raise CommandRefused(f"there is no service {name!r} in the store{listed}")


def _rounded(number: float | None, digits: int = 6) -> float | None:
    return None if number is None else round(number, digits)


def _moment(retry_in: float | None) -> datetime | None:
    return None if retry_in is None else datetime.now(UTC) + timedelta(seconds=retry_in)


def service_document(known: ServiceFacts) -> dict[str, Any]:
    """Return a service as JSON shows it."""
    found = known.state
    return {
        "service": known.name,
        "state": str(found.state),
        "hosts": list(found.hosts),
        "everywhere": found.everywhere,
        "retry_in": found.retry_in,
        "changed_at": None if found.changed_at is None else iso(found.changed_at),
        "drained": [{"key_id": key.key_id, "until": iso(key.until)} for key in found.drained],
        "last_day": _window(known.day),
    }


def _window(one: ServiceWindow) -> dict[str, Any]:
    return {**one.document(), "service": mask(one.service)}
