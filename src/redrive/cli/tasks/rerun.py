"""`redrive tasks rerun` and `cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.cli.command import command
from redrive.cli.dlq.resolve import Yes, confirm
from redrive.cli.format import counted
from redrive.cli.session import Session
from redrive.cli.tasks.noun import RunOption, app, run_of
from redrive.cli.tasks.resolve import show_how_to_resume

_Names = Annotated[
    list[str],
    typer.Argument(metavar="TASK", help="Tasks: settle with all its children, settle[17].", show_default=False),
]


@command(app)
def rerun(
    session: Session,
    *,
    tasks: _Names,
    run: RunOption = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Reason, stored with the task.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run again; change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Run succeeded tasks again, with all downstream tasks. Idempotency keys stay the same.

    Examples: redrive tasks rerun report --dry-run; redrive tasks rerun 'settle[2]' --run settlement --note "new rate"
    """
    from redrive.tasks.operator.rerun import rerun as rerun_tasks

    out, names = session.out, tuple(dict.fromkeys(tasks))
    with session.opened() as store:
        run_id = run_of(store, run).run_id
        foreseen = rerun_tasks(store, run_id, names, dry_run=True)
        which = foreseen.tasks[0] if len(foreseen.tasks) == 1 else counted(len(foreseen.tasks), "task")
        what = f"run {which} again, and {counted(foreseen.freed, 'task')} downstream"
        total = len(foreseen.tasks) + foreseen.freed
        if not (dry_run or yes) and total > 1:
            confirm(session, what, total)
        decided = foreseen if dry_run else rerun_tasks(store, run_id, names, note=note)
        report = store.tasks.run(run_id)
    if out.json:
        changed = {"tasks": decided.tasks, "below": decided.freed, "dry_run": dry_run}
        out.document({"flow": decided.flow, "run_id": str(run_id), **changed})
    of = f"of {decided.flow}, run {str(run_id)[:8]}"
    if dry_run:
        out.say(f"would {what}, {of}. Nothing was changed")
        return
    out.say(f"{which} {of}, will run again, and {counted(decided.freed, 'task')} downstream")
    show_how_to_resume(session, report)


@command(app)
def cancel(
    session: Session,
    *,
    tasks: _Names,
    run: RunOption = None,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Reason, stored with the task.", show_default=False)
    ],
) -> None:
    """Cancel tasks that have not ended: a running task is killed, a waiting one fails. The rest of the run continues.

    Downstream tasks run or not by their trigger rule. `redrive runs cancel` cancels a whole run.

    Examples: redrive tasks cancel settle --note "wrong file"; redrive tasks cancel 'settle[2]' --note "stuck"
    """
    from redrive.tasks.operator.cancel import cancel_tasks

    out = session.out
    with session.opened() as store:
        run_id = run_of(store, run).run_id
        done = cancel_tasks(store, run_id, tuple(dict.fromkeys(tasks)), note=note)
    if out.json:
        changed = {"tasks": done.tasks, "killed": done.killed, "upstream_failed": done.upstream_failed}
        out.document({"flow": done.flow, "run_id": str(run_id), **changed})
    parts = []
    for names, how in ((done.tasks, "cancelled {}"), (done.killed, "{} will be killed within ten seconds or so")):
        if names:
            parts.append(how.format(names[0] if len(names) == 1 else counted(len(names), "task")))
    if done.upstream_failed:
        parts.append(f"{counted(done.upstream_failed, 'task')} downstream will not run")
    out.say("; ".join(parts))
