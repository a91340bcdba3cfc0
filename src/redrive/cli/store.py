"""`redrive store`: what it holds, and its schema."""

from __future__ import annotations

from redrive.cli.command import command, noun
from redrive.cli.output import Column
from redrive.cli.session import Session
from redrive.cli.wording import at, megabytes
from redrive.errors import SchemaMismatch

app = noun("The store: what it holds, and its schema.", bare="info")


@command(app)
def info(session: Session) -> None:
    """Where the store is, which schema it has, how full it is."""
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
    """Bring the schema up to date. Makes the store if there is none."""
    out = session.out
    try:
        with session.opened(create=True, migrate=False) as store:
            found, changed = store.info(), False
    except SchemaMismatch:
        # Older, or none at all: what is newer is refused here once more.
        with session.opened(create=True, migrate=True) as store:
            found, changed = store.info(), True
    if out.json:
        out.document({"url": found.url, "schema_version": found.schema_version, "changed": changed})
    done = f"was brought to schema version {found.schema_version}" if changed else "is up to date"
    out.say(f"{found.url} {done}{'' if changed else f', at schema version {found.schema_version}'}")
