"""`redrive tasks backfill`: a flow, run for each value of a range."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import counted
from redrive.cli.run import found_target, read_value
from redrive.cli.session import Session
from redrive.cli.tasks.noun import app
from redrive.errors import FlowStopped
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus

if TYPE_CHECKING:
    from redrive.store.store import Store
    from redrive.tasks.backfill import Backfill, Backfilled
    from redrive.tasks.flow import Flow


@command(app)
def backfill(
    session: Session,
    *,
    target: Annotated[str, typer.Argument(metavar="FILE_OR_MODULE:NAME", help="Flow to run.", show_default=False)],
    param: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUES",
            help="Parameter: a range of days or integers, 2026-01-01..2026-01-31, a list, eu,us, or one value.",
            show_default=False,
        ),
    ],
    parallel: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of concurrent runs.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which runs would be made; run nothing.")] = False,
) -> None:
    """Run a flow for each value of a range. Complete runs are skipped, so running it again resumes the backfill.

    A failed run does not end the backfill. The exit code is 75 if running it again can help (a run failed for a
    transient reason, or was stopped), else 70.

    Examples: redrive tasks backfill settlement.py:flow --param day=2026-01-01..2026-01-31 --parallel 4;
    redrive tasks backfill report.py:flow --param month=1..12 --param region=eu,us --dry-run
    """
    from redrive.cli.targets import is_flow
    from redrive.tasks.backfill import Backfill

    values = _values(param)
    with redirect_stdout(sys.stderr), ExitStack() as around:
        flow: Flow = found_target(target)
        if not is_flow(flow):
            raise CommandRefused(f"{target} is not a flow: a backfill runs a flow for each value of a parameter")
        plan = Backfill(flow, values, parallel=parallel)
        if plan.repeated:
            session.out.say(f"{counted(plan.repeated, 'duplicate')} left out: equal parameters are run once")
        store: Store | None = None
        if session.url is not None:
            store = around.enter_context(session.opened(create=True, may_lack_secrets=False))
        if dry_run:
            _foresee(session, flow.name, plan, store or flow.store)
            return
        ended = plan.run(store, each=lambda ended_run: session.out.say(_line(ended_run)))
    _report(session, flow.name, ended)


def _values(given: list[str]) -> list[dict[str, Any]]:
    from redrive.tasks.backfill import combined, values_of

    values: dict[str, list[Any]] = {}
    for one in given:
        name, equals, text = one.partition("=")
        name = name.strip()
        if not (equals and name and text.strip()):
            raise CommandRefused(f"--param is NAME=VALUES, such as day=2026-01-01..2026-01-31, not {one!r}")
        if name in values:
            raise CommandRefused(f"--param {name} is given twice; write its values as a list, {name}=a,b")
        try:
            values[name] = values_of(text, read_value)
        except ValueError as error:
            raise CommandRefused(f"--param {name}: {error}") from None
    try:
        return combined(values)
    except ValueError as error:
        raise CommandRefused(str(error)) from None


def _foresee(session: Session, flow: str, plan: Backfill, store: Store) -> None:
    from redrive._internal.masking import mask_all
    from redrive.tasks.parameters import written

    done = plan.complete(store)
    if session.out.json:
        runs = [{"params": mask_all(params), "skipped": written(params) in done} for params in plan.params]
        session.out.document({"flow": flow, "dry_run": True, "runs": runs})
    for params in plan.params:
        session.out.say(f"{_shown(params)}: {'complete, skipped' if written(params) in done else 'to be run'}")
    left = len(plan.params) - len(done)
    session.out.say(
        f"would make {counted(left, 'run')}, and skip {counted(len(done), 'complete run')}. Nothing was run."
    )


def _report(session: Session, flow: str, ended: list[Backfilled]) -> None:
    from redrive.tasks.executor.decide import RECOVERS

    out = session.out
    bad = [run for run in ended if run.status is not FlowStatus.COMPLETE]
    skipped = sum(run.skipped for run in ended)
    if out.json:
        out.document({"flow": flow, "runs": [_document(run) for run in ended]})
    out.say(
        f"{flow}: {len(ended) - len(bad) - skipped:,} complete, {skipped:,} skipped because they were complete, "
        f"{len(bad):,} not complete, of {counted(len(ended), 'run')}"
    )
    if bad:
        kind = Kind.TRANSIENT if any(run.kind in RECOVERS for run in bad) else Kind.PERMANENT
        names = ", ".join(_shown(run.params) for run in bad[:5]) + (", …" if len(bad) > 5 else "")
        raise FlowStopped(f"backfill of flow {flow!r}: {counted(len(bad), 'run')} not complete: {names}", kind=kind)


def _document(one: Backfilled) -> dict[str, Any]:
    from redrive._internal.masking import mask_all

    status = None if one.status is None else str(one.status)
    run_id = None if one.run_id is None else str(one.run_id)
    return {
        "params": mask_all(one.params),
        "status": status,
        "skipped": one.skipped,
        "run_id": run_id,
        "error": one.error,
    }


def _line(one: Backfilled) -> str:
    return f"{_shown(one.params)}: {one.status}" + (f"; {one.error}" if one.error else "")


def _shown(params: Any) -> str:
    from redrive._internal.masking import mask

    return mask(" ".join(f"{name}={value}" for name, value in params.items()))
