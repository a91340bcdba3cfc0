"""`redrive dlq export`, `import` and `purge`."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from redrive._internal.files import local_path
from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.dlq.resolve import Yes, confirm
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import counted, in_json
from redrive.cli.letter_options import Selection
from redrive.cli.output import whole_file
from redrive.cli.session import Session

_REPORT_EVERY = 500
_BEGINNING = 1_000  # bytes
_EXPORT = re.compile(rb'\s*\{\s*"format"\s*:\s*\d+\s*,\s*"pipeline_name"\s*:')


@command(app)
def export(
    session: Session,
    selection: Selection,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="File to write, whole or not at all. - for stdout.")
    ] = "-",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is not an export of letters.")] = False,
) -> None:
    """Export letters as NDJSON, one per line, oldest first.

    Letters of every status unless --status is given. Records are complete and unmasked, so an import loses nothing. An
    earlier export of that name is overwritten; any other file only with --force.

    Examples: redrive dlq export --output letters.ndjson; redrive dlq export --pipeline vendor --status any
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
        if path.is_dir():
            raise CommandRefused(f"{output!r} is a directory; name a file. Nothing was written")
        if _is_of_store(path, store.database.dialect.place()):
            raise CommandRefused(f"{path} is a file of the open store; name another file. Nothing was written")
        if not force and not _may_be_replaced(path):
            raise CommandRefused(
                f"{path} exists and is not an export of letters; name another file, or pass --force. "
                "Nothing was written"
            )
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
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File that `export` wrote; - for stdin.")],
) -> None:
    """Import letters that `export` wrote, each once.

    Letters that are already in the store are kept as they are, also if the file has another status or record: those are
    counted. Creates the store if there is none.

    Examples: redrive dlq import letters.ndjson; redrive dlq import - --store archive.db
    """
    source = sys.stdin.buffer if file == "-" else _opened(_local(file))
    with source, session.opened(create=True) as store, session.out.progress("importing", of="bytes") as tell:
        size = os.fstat(source.fileno()).st_size if file != "-" else None
        done = store.dlq.import_(_reporting(_lines(source), size, tell))
    if session.out.json:
        session.out.document(dataclasses.asdict(done))
    known = f"; {counted(done.known)} already in the store" if done.known else ""
    if done.differing:
        known += f", {done.differing:,} of them with another status or record, which the store keeps"
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
        str, typer.Option(metavar="WHEN", help="Age, such as 30d, or a date; what was resolved before is removed.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print how many would be removed.")] = False,
    yes: Yes = False,
) -> None:
    """Remove letters that were resolved long ago, for good.

    Reprocessed and discarded letters are removed; open letters are always kept.

    Examples: redrive dlq purge --older-than 90d --dry-run; redrive dlq purge --pipeline vendor --yes
    """
    with session.opened() as store:
        filters = selection.filters(store.dlq)
        # A schedule purges without a terminal: only an operator is asked.
        if not dry_run and not yes and session.out.attended:
            would = store.dlq.purge(older_than=older_than, dry_run=True, **filters).letters
            if would:
                confirm(session, f"remove {counted(would)} for good", would)
        purged = store.dlq.purge(older_than=older_than, dry_run=dry_run, **filters)
    if session.out.json:
        session.out.document({"letters": purged.letters, "dry_run": purged.dry_run})
    if purged.dry_run:
        session.out.say(f"would remove {counted(purged.letters)}. Nothing was changed")
    else:
        session.out.say(f"removed {counted(purged.letters)}")


def _is_of_store(path: Path, place: object) -> bool:
    """Return whether the path is a file of the open store: the database or its log."""
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            found = path.with_name(path.name.removesuffix(end)).stat()
            if path.name.endswith(end) and place == (found.st_dev, found.st_ino):
                return True
    return False


def _may_be_replaced(path: Path) -> bool:
    """Whether an export may take the place of a file: it is empty, an export, or none at all."""
    if not path.is_file():
        return True
    with _opened(path) as file:
        beginning = file.read(_BEGINNING)
    return not beginning or _EXPORT.match(beginning) is not None


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
    """Iterate over the lines, each with its length in bytes."""
    for number, line in enumerate(source):
        try:
            yield line.decode("utf-8-sig" if not number else "utf-8"), len(line)
        except UnicodeDecodeError:
            yield "no text", len(line)  # not JSON either: the import names the line


def _reporting(
    lines: Iterable[tuple[str, int]], size: int | None, report: Callable[[int, int | None], Any]
) -> Iterator[str]:
    done = 0
    for number, (line, length) in enumerate(lines):
        done += length
        if number % _REPORT_EVERY == 0:
            report(done, size)
        yield line
