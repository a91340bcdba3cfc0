"""Generated files through a whole pipeline: every record of a source is a row of the table or in a letter, once."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import redrive
from redrive import rows
from tests.oracles.json_lines import comparable, read_lines
from tests.support.file_fuzz import json_file


def run_pipeline(source: Any, folder: Path) -> tuple[Counter[str], list[tuple[str, Any]]] | None:
    """Return the rows that are in the table and the letters, by their position; None where the run stopped.

    A row is kept as one text, so that a table takes whatever a record holds.
    """
    name = f"fuzz {uuid4()}"  # one store for all: a new one takes longer than a run
    with closing(sqlite3.connect(folder / "pipeline.table")) as table, table:
        table.execute("CREATE TABLE IF NOT EXISTS t (v TEXT)")
        table.execute("DELETE FROM t")
    with redrive.connect(folder / "pipeline.store") as store:
        pipeline = redrive.Pipeline(
            name,
            source=source,
            transform=lambda record: {"v": as_text(comparable(record))},
            sink=rows.table(f"sqlite:///{folder}/pipeline.table", "t", append=True),
            store=store,
            gate=redrive.Gate(abort=1, abort_least=1 << 40),
            batch=7,
        )
        try:
            report = pipeline.run()
        except redrive.RunStopped:
            return None
        letters = sorted((letter.position, letter.record) for letter in store.dlq.each(pipeline=name))
    with closing(sqlite3.connect(folder / "pipeline.table")) as table:
        written = Counter(text for (text,) in table.execute("SELECT v FROM t"))
    assert (report.status, report.written) == ("complete", written.total())
    return written, letters


def as_text(record: Any) -> str:
    """Return what `comparable` gave as a text; equal for equal numbers, and without fields that are null."""
    # A transform is given every column of its batch.
    record = {name: value for name, value in record.items() if value != ("NoneType", None)}
    return json.dumps(record, default=lambda number: str(Fraction(number)), sort_keys=True)


def ndjson_pipeline_case(number: int, folder: Path) -> None:
    data = json_file(Random(f"pipeline {number}"))
    path = folder / "case.ndjson"
    path.write_bytes(data)
    found = run_pipeline(rows.ndjson(path), folder)
    records, bad = read_lines(data)
    if found is None:
        assert bad  # not NDJSON at all
        return
    written, letters = found
    assert written == Counter(map(as_text, records.values()))
    assert letters == sorted((f"line {number}", line) for number, line in bad.items())
