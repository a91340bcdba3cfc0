"""`redrive store`: size, schema and retention of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.command import command, noun
from redrive.cli.dlq.resolve import Yes, confirm
from redrive.cli.format import at, counted, megabytes
from redrive.cli.output import Column
from redrive.cli.session import Session
from redrive.errors import SchemaMismatch

if TYPE_CHECKING:
    from redrive.store.retention.finished import StorePurged

app = noun("Show, migrate and purge the store.", bare="info")


@command(app)
def info(session: Session) -> None:
    """Show the address, schema version and size of the store.

    Examples: redrive store info; redrive store info --json
    """
    from redrive.cli.letter_view import plain

    with session.opened() as store:
        found = store.info()
    size, out = found.size, session.out
    assert size is not None, "connecting has seen to the schema"
    if out.json:
        out.document(
            {
                "url": found.url,
                "database": found.database,
                "schema_version": found.schema_version,
                "known_version": found.known_version,
                "letters": size.letters,
                "by_status": dict(size.by_status),
                "pending_by_pipeline": dict(size.pending_by_pipeline),
                "new_today_by_pipeline": dict(size.new_today_by_pipeline),
                "oldest_pending": plain(size.oldest_pending),
                "bytes": size.bytes,
            }
        )
        return
    rows: list[tuple[str, object]] = [
        ("store", found.url),
        ("database", found.database),
        ("schema version", found.schema_version),
        ("size", megabytes(size.bytes) if out.terminal else size.bytes),
        ("letters", size.letters),
        *((f"  {status}" if out.terminal else status, count) for status, count in size.by_status.items()),
        *([("oldest pending", at(moment) if out.terminal else moment)] if (moment := size.oldest_pending) else []),
        *((f"pending in {name}", count) for name, count in sorted(size.pending_by_pipeline.items())),
    ]
    out.table((Column(title="what"), Column(title="value", least=20)), rows)


@command(app)
def migrate(session: Session) -> None:
    """Migrate the schema to the current version. Creates the store if there is none.

    Examples: redrive store migrate; redrive store migrate --store postgresql://redrive@db/prod
    """
    out = session.out
    try:
        with session.opened(create=True, migrate=False) as store:
            found, changed = store.info(), False
    except SchemaMismatch:
        # Older, or none at all: a newer schema is rejected here again.
        with session.opened(create=True, migrate=True) as store:
            found, changed = store.info(), True
    if out.json:
        out.document({"url": found.url, "schema_version": found.schema_version, "changed": changed})
    done = f"was brought to schema version {found.schema_version}" if changed else "is up to date"
    out.say(f"{found.url} {done}{'' if changed else f', at schema version {found.schema_version}'}")


@command(app)
def purge(
    session: Session,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="Age, such as 90d, or a date; what ended before is removed.", show_default=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print how much would be removed.")] = False,
    files: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Directory of results, if Flow(files=…) names one. [default: from redrive.toml]",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove finished work of a certain age, for good.

    Runs, flows with their tasks and results, resolved alerts, measurements of services. Unfinished and held work is
    kept, and so are the newest runs of each pipeline and flow. `redrive dlq purge` removes letters.

    Examples: redrive store purge --older-than 90d --dry-run; redrive store purge --older-than 2026-01-01 --yes
    """
    out = session.out
    files = session.settings.result_files if files is None else files
    with session.opened() as store:
        # A schedule purges without a terminal: only an operator is asked.
        if not dry_run and not yes and out.attended:
            would = store.purge(older_than=older_than, dry_run=True, files=files)
            if what := describe_purged(would):
                if would.elsewhere:
                    out.say(left_behind(would))
                confirm(session, f"remove {what} for good", would.runs + would.flows)
        with out.progress("purging", of="runs") as tell:
            purged = store.purge(older_than=older_than, dry_run=dry_run, files=files, progress=tell)
        remote = store.database.dialect.is_remote
    if out.json:
        out.document(asdict(purged))
    what = describe_purged(purged) or "nothing"
    out.say(f"would remove {what}. Nothing was changed" if purged.dry_run else f"removed {what}")
    for sentence in beside(purged, remote=remote):
        out.say(sentence)


def describe_purged(purged: StorePurged) -> str:
    """`3 runs, 1 run of flows with 12 tasks and 2 files`: what there is of it."""
    flows = [counted(purged.flows, "run") + " of flows", counted(purged.tasks, "task"), counted(purged.files, "file")]
    parts = [
        *([counted(purged.runs, "run") + " of pipelines"] if purged.runs else []),
        *([f"{flows[0]} with {flows[1]} and {flows[2]}"] if purged.flows or purged.tasks else []),
        *([counted(purged.alerts, "alert")] if purged.alerts else []),
        *([f"{counted(purged.services, 'quarter')} of an hour of services"] if purged.services else []),
    ]
    return ", ".join(parts)


def beside(purged: StorePurged, *, remote: bool) -> Sequence[str]:
    """Return notes on runs that were kept and on disk space."""
    parts = []
    if purged.kept:
        parts.append(
            f"{counted(purged.kept, 'run')} of that age stay{'s' if purged.kept == 1 else ''}: unfinished, waited for, "
            "or needed to say what is usual"
        )
    if purged.elsewhere:
        parts.append(left_behind(purged))
    if not remote and not purged.dry_run and (purged.runs or purged.flows or purged.alerts):
        parts.append("the space is used again; the file itself does not shrink, unless by SQLite's VACUUM")
    return parts


def left_behind(purged: StorePurged) -> str:
    """Warn that files are not removed with their runs, while their directory (Flow(files=…)) is still known."""
    one, would = purged.elsewhere == 1, purged.dry_run
    be = ("is" if one else "are") if would else ("was" if one else "were")
    files = "a file that is" if one else "files that are"
    stays = "would stay" if would else "stays" if one else "stay"
    return (
        f"{counted(purged.elsewhere, 'result')} {be} in {files} not here, and {stays} there; where Flow(files=…) names "
        f"a directory, say so with --files or in [retention]{'' if would else ' before the next purge'}"
    )
