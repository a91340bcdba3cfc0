"""`redrive status`: one screen about a store."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from redrive._internal.masking import mask
from redrive.cli.command import command
from redrive.cli.format import ago, counted, percent, short_path, style_of, style_of_circuit
from redrive.cli.output import Column, iso
from redrive.cli.session import Session

if TYPE_CHECKING:
    from redrive.cli.output import Output
    from redrive.cli.services import ServiceFacts
    from redrive.model.alerts import Alert
    from redrive.model.runs import Report
    from redrive.model.tasks import FlowReport
    from redrive.store.store import Store

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_MOST = 5  # rows of a section


@dataclass(frozen=True, slots=True)
class _StoreStatus:
    """The data of the sections."""

    store: str
    runs: list[Report | FlowReport]
    alerts: list[Alert]
    more_alerts: bool
    letters: dict[str, int]
    services: list[ServiceFacts]


@command(app)
def status(session: Session) -> None:
    """Show the last runs, open alerts, open letters and services with trouble, on one screen.

    The exit code is 0 also where something is wrong.

    Examples: redrive status; redrive status --json
    """
    with session.opened() as store:
        found = _read(store)
    out = session.out
    if out.json:
        out.document(_document(found))
    elif out.terminal:
        _draw(out, found)
    else:
        columns = [Column(title=title) for title in ("section", "id", "name", "status", "detail")]
        out.table(columns, [row for rows in _sections(found).values() for row in rows])
    out.next_steps([(purpose, f"{words}{session.store_option}") for purpose, words in _steps(found)])


def _read(store: Store) -> _StoreStatus:
    from redrive.cli.services import all_services
    from redrive.model.alerts import Severity

    runs: list[Report | FlowReport] = [*store.runs.find(limit=_MOST), *store.tasks.runs(limit=_MOST)]
    runs.sort(key=lambda run: run.started_at, reverse=True)
    alerts = [alert for tier in Severity for alert in store.alerts.find(status="open", urgency=tier, limit=_MOST + 1)]
    letters = store.dlq.size().open_by_pipeline
    return _StoreStatus(
        store=store.database.name,
        runs=runs[:_MOST],
        alerts=alerts[:_MOST],
        more_alerts=len(alerts) > _MOST,
        letters=dict(sorted(letters.items(), key=lambda item: (-item[1], item[0]))),
        services=[service for service in all_services(store, datetime.now(UTC)) if service.has_trouble],
    )


def _sections(found: _StoreStatus) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each section: section, id, name, status and detail."""
    from redrive.cli.runs import name_of, summary_of

    return {
        "runs": [("run", run.run_id, name_of(run), run.status, summary_of(run)) for run in found.runs],
        "alerts": [
            ("alert", alert.id, str(alert.subject), str(alert.urgency), mask(alert.title)) for alert in found.alerts
        ],
        "letters": [("letters", None, name, "open", count) for name, count in found.letters.items()],
        "services": [
            ("service", None, service.name, str(service.state.state), _trouble(service)) for service in found.services
        ],
    }


_RUNS = (
    Column(title="run", show=lambda run_id: str(run_id)[:8]),
    Column(title="pipeline or flow", least=12),
    Column(title="status", style=style_of),
    Column(title="started", show=ago, drop=1),
    Column(title="result", least=20, wrap=True),
)
_ALERTS = (
    Column(title="alert", show=str, right=True),
    Column(title="severity", style=style_of),
    Column(title="since", show=ago, drop=1),
    Column(title="title", least=20, wrap=True),
)
_LETTERS = (Column(title="pipeline", least=12), Column(title="open letters", right=True))
_SERVICES = (
    Column(title="service", least=12),
    Column(title="circuit", show=lambda state: str(state).replace("_", "-"), style=style_of_circuit),
    Column(title="trouble", least=20, wrap=True),
)


def _draw(out: Output, found: _StoreStatus) -> None:
    from redrive.cli.runs import name_of, summary_of

    out.heading(f"Store {short_path(found.store)}", first=True)
    out.heading("Last runs")
    if not found.runs:
        out.text("no runs yet")
    runs = [[run.run_id, name_of(run), run.status, run.started_at, summary_of(run)] for run in found.runs]
    out.table(_RUNS, runs)
    out.heading("Open alerts")
    if not found.alerts:
        out.text("none")
    out.table(_ALERTS, [[alert.id, alert.urgency, alert.since, mask(alert.title)] for alert in found.alerts])
    out.heading("Open letters")
    if not found.letters:
        out.text("none")
    shown = list(found.letters.items())[:_MOST]
    out.table(_LETTERS, shown)
    if len(found.letters) > _MOST:
        out.text(f"and {counted(len(found.letters) - _MOST, 'more pipeline')}")
    out.heading("Services with trouble")
    if not found.services:
        out.text("none")
    out.table(_SERVICES, [[service.name, service.state.state, _trouble(service)] for service in found.services[:_MOST]])
    if len(found.services) > _MOST:
        out.text(f"and {counted(len(found.services) - _MOST, 'more service')}")


def _trouble(service: ServiceFacts) -> str:
    """Return what is wrong with a service."""
    state, day = service.state, service.day
    parts = []
    if state.hosts:
        parts.append(f"circuit opened (reported by {', '.join(state.hosts)})")
    if state.drained:
        parts.append(f"{counted(len(state.drained), 'exhausted key')}")
    if day.calls_failed and day.success_rate is not None:
        parts.append(f"{counted(day.calls_failed, 'call')} failed in the last day, {percent(day.success_rate)} success")
    return "; ".join(parts)


def _steps(found: _StoreStatus) -> list[tuple[str, str]]:
    steps = []
    if found.alerts:
        steps.append(("the first alert in full", f"redrive alerts show {found.alerts[0].id}"))
    if found.more_alerts:
        steps.append(("all open alerts", "redrive alerts ls"))
    if found.letters:
        steps.append(("open letters by cause", "redrive dlq causes"))
    if found.services:
        steps.append(("a service in detail", f"redrive services show {shlex.quote(found.services[0].name)}"))
    return steps


def _document(found: _StoreStatus) -> dict[str, Any]:
    from redrive.cli.runs import run_document
    from redrive.cli.services import service_document

    return {
        "store": found.store,
        "runs": [run_document(run) for run in found.runs],
        "alerts": [alert.document() for alert in found.alerts],
        "open_letters": found.letters,
        "services": [service_document(service) for service in found.services],
        "at": iso(datetime.now(UTC)),
    }
