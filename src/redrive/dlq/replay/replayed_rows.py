"""When replays have written rows: letters that are older, and whose key is not known, may overwrite them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, case

from redrive.dlq.replay.target import TargetAnswer
from redrive.model.letters import Letter
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import replayed_rows


def note_replayed(
    connection: Connection,
    dialect: Dialect,
    written: Sequence[tuple[Letter, TargetAnswer]],
    *,
    pipeline: str | None,
    sink: str | None,
) -> None:
    """Note that rows of these letters were written.

    Args:
        pipeline: that of the target; None where it is a function.
        sink: that of the target, as runs have it; None where it does not say.
    """
    now = datetime.now(UTC)  # by the clock of letters
    newest: dict[str, datetime] = {}
    for letter, _ in written:
        # What an operator has edited is newer than any record that was received before.
        moment = now if letter.edited else letter.last_seen
        newest[letter.pipeline] = max(newest.get(letter.pipeline, moment), moment)
    if not newest:
        return
    column, insert = replayed_rows.c, dialect.insert(replayed_rows)
    given = insert.excluded
    later = case((given.newest_letter > column.newest_letter, given.newest_letter), else_=column.newest_letter)
    upsert = insert.on_conflict_do_update(
        index_elements=[column.letters_of, column.pipeline_name, column.sink],
        set_={"written_at": given.written_at, "newest_letter": later},
    )
    rows = [
        {
            "letters_of": name,
            "pipeline_name": pipeline or name,
            "sink": sink or "",
            "written_at": now,
            "newest_letter": moment,
        }
        for name, moment in sorted(newest.items())
    ]
    connection.execute(upsert, rows)
