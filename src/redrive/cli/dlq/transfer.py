"""`redrive dlq export`, `import` and `purge`: letters out of a store, into a store, and gone."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from redrive._internal.paths import local_path
from redrive.cli.atomic_file import whole_file
from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.dlq.resolve import Yes, confirm
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import counted, in_json
from redrive.cli.letter_options import Selection
from redrive.cli.session import Session

_REPORT_EVERY = 500


@command(app)
def export(
    session: Session,
    selection: Selection,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Into this file, whole or not at all.")
    ] = "-",
) -> None:
    """Write letters as NDJSON, one a line, oldest first.

    Of every status unless one is said. The records are complete: nothing is masked, so that an import loses nothing.
    """
    with session.opened() as store:
        filters = selection.filters(store.dlq)
        lines = store.dlq.export(**filters)
        if output == "-":
            for line in lines:
                sys.stdout.write(f"{in_json(line)}\n")
            return
        total = store.dlq.count(**filters)
        path = _local(output)
        if _is_of_store(path, store.database.dialect.place()):
            raise CommandRefused(f"{path} is a file of the open store; name another file. Nothing was written")
        with whole_file(path) as file, session.out.progress("exporting") as tell:
            written = 0
            for line in lines:
                file.write(f"{line}\n".encode())
                written += 1
                if written % _REPORT_EVERY == 0:
                    tell(written, total)
    if session.out.json:
        session.out.document({"letters": written, "file": output})
    session.out.say(f"exported {counted(written)} to {output}")


@command(app, "import")
def import_(
    session: Session, file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - for stdin.")]
) -> None:
    """Take in what `export` wrote, each letter once.

    Letters that are there already are left as they are, also if the file has them with another status or record: those
    are counted. Makes the store if there is none.
    """
    source = sys.stdin.buffer if file == "-" else _opened(_local(file))
    with source, session.opened(create=True) as store, session.out.progress("importing", of="bytes") as tell:
        size = os.fstat(source.fileno()).st_size if file != "-" else None
        done = store.dlq.import_(_told(_lines(source), size, tell))
    if session.out.json:
        session.out.document(dataclasses.asdict(done))
    known = f"; {counted(done.known)} were there already" if done.known else ""
    if done.differing:
        known += f", {done.differing:,} of them with another status or record, and were left as they are in the store"
    session.out.say(f"imported {counted(done.new)}{known}")
    if done.masked_elsewhere:
        session.out.say(
            f"{counted(done.masked_elsewhere)} were masked by another store: their keys cannot be compared here, so no "
            "run supersedes them. Compare them with the sink before you replay them"
        )


@command(app)
def purge(
    session: Session,
    selection: Selection,
    older_than: Annotated[
        str, typer.Option(metavar="WHEN", help="Settled longer ago than this, or before this date.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    yes: Yes = False,
) -> None:
    """Remove for good what was settled long ago.

    Letters that were reprocessed or discarded; what is pending or escalated always stays.
    """
    with session.opened() as store:
        filters = selection.filters(store.dlq)
        # Purging is by its nature bulk, and a schedule does it where nobody is there: only a person is asked.
        if not dry_run and not yes and session.out.attended:
            would = store.dlq.purge(older_than=older_than, dry_run=True, **filters).letters
            if would:
                confirm(session, f"remove {counted(would)} for good", would)
        purged = store.dlq.purge(older_than=older_than, dry_run=dry_run, **filters)
    if session.out.json:
        session.out.document({"letters": purged.letters, "dry_run": purged.dry_run})
    if purged.dry_run:
        session.out.say(f"would remove {counted(purged.letters)}; nothing was changed")
    else:
        session.out.say(f"removed {counted(purged.letters)}")


def _is_of_store(path: Path, place: object) -> bool:
    """Whether it is the file of the open store, under whichever name, or its log."""
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            found = path.with_name(path.name.removesuffix(end)).stat()
            if path.name.endswith(end) and place == (found.st_dev, found.st_ino):
                return True
    return False


def _local(path: str) -> Path:
    try:
        return Path(local_path(path, "the file"))
    except ValueError as error:
        raise CommandRefused(str(error)) from None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandRefused(f"cannot read {path}: {error.strerror}") from None


def _lines(source: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    """The lines, and how long each was."""
    for number, line in enumerate(source):
        try:
            yield line.decode("utf-8-sig" if not number else "utf-8"), len(line)
        except UnicodeDecodeError:
            yield "no text", len(line)  # as good as a line that is cut off: the import says which one


def _told(lines: Iterable[tuple[str, int]], size: int | None, tell: Callable[[int, int | None], Any]) -> Iterator[str]:
    done = 0
    for number, (line, length) in enumerate(lines):
        done += length
        if number % _REPORT_EVERY == 0:
            tell(done, size)
        yield line
