"""Runs over changing files, decisions about letters and replays, in redrive and in its oracle at the same time."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
from hypothesis import strategies as st

import redrive
from tests.oracles.replays import NAME_COLUMNS, NO_FEE, Line, Name, Oracle, Week, name_of, ref_of
from tests.support.stores import NewStore

IDS = ("1", "2", "3", "4", "5")
BAD_BYTE = "é"  # in cp1252: one byte, which is no UTF-8
NO_LIMIT = redrive.Gate(warn=1, page=1, abort=1)
FILES = ("in-a", "in-b")
NAMED = st.sampled_from(FILES)


@st.composite
def weeks(draw: st.DrawFn) -> tuple[Week, str]:
    """A file and its name. Columns are renamed, added, removed and in any order; each id comes at most once.

    Lines that cannot be decoded are in CSV files only: of NDJSON, no encoding but UTF-8 is read.
    """
    form = draw(st.sampled_from([".csv", ".csv", ".ndjson"]))
    columns = ["id", "ref", "fee", *draw(st.sampled_from([("name",), ("name",), ("title",), ()]))]
    columns += ["note"] if draw(st.booleans()) else []
    notes, fees = st.sampled_from(["n", "m"]), st.sampled_from(["1", "2", NO_FEE])
    names = st.sampled_from(["x", "y", "z"])
    ids = draw(st.lists(st.sampled_from(IDS), unique=True))
    lines = [Line(one, draw(names), draw(fees), draw(notes)) for one in ids]
    if form == ".csv" and set(columns) & set(NAME_COLUMNS):
        bad = range(draw(st.integers(0, 2)))
        lines += [Line(f"b{one}", draw(names) + BAD_BYTE, draw(fees), draw(notes), unreadable=True) for one in bad]
    key = draw(st.sampled_from(["id", "id", "ref"]))
    week = Week(tuple(draw(st.permutations(columns))), tuple(draw(st.permutations(lines))), key)
    return week, draw(NAMED) + form


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["edit fee", "edit id", "discard", "escalate", "replay", "replay one", "dry run", "remove file"]
        ),
        st.integers(0, 100),
    ),
    max_size=6,
)


class Order(pydantic.BaseModel):
    """A model without validators, so that the key of a rejected row is known whatever else is in the file."""

    id: str
    ref: str
    name: str | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices(*NAME_COLUMNS))
    fee: float


def repair(record: dict[str, Any]) -> dict[str, Any]:
    """Accept every record, with the fields that it has."""
    fields = {column: value for column, value in record.items() if column not in NAME_COLUMNS} | name_of(record)
    return {**fields, "fee": 0.0 if record["fee"] == NO_FEE else float(record["fee"])}


class World:
    """A store, a table and files; every step is taken here and in the oracle."""

    def __init__(self, store: redrive.Store, directory: Path, number: int, batch: int) -> None:
        self.store, self.oracle, self.batch = store, Oracle(), batch
        self.name = f"vendor-{number}"
        self.directory = directory / f"in-{number}"
        self.directory.mkdir()
        self.file = self.directory / "none.csv"
        self.key = "id"
        self.keys_of_runs: dict[UUID | None, str] = {}
        self.warehouse = directory / f"out-{number}.db"
        with sqlite3.connect(self.warehouse) as connection:
            connection.execute("CREATE TABLE orders (id TEXT UNIQUE, ref TEXT UNIQUE, name TEXT, fee REAL, note TEXT)")

    def pipeline(self, *, fixed: bool) -> redrive.Pipeline:
        source: Any = redrive.rows.csv(self.file.with_suffix(".csv"), encoding="cp1252")
        if not fixed:
            source = (redrive.rows.csv if self.file.suffix == ".csv" else redrive.rows.ndjson)(self.file)
        return redrive.Pipeline(
            self.name,
            source=source,
            validate=repair if fixed else Order,
            sink=redrive.rows.table(f"sqlite:///{self.warehouse}", "orders", key=self.key),
            batch=self.batch,
            gate=NO_LIMIT,
            store=self.store,
        )

    def run(self, week: Week, file: str, number: int) -> None:
        # An unreadable line has an id of its own in each file: its key is not known until it can be decoded.
        lines = tuple(replace(one, id=f"{one.id}-{number}") if one.unreadable else one for one in week.lines)
        records = [dict(week.content(one)) for one in lines]
        self.key, self.file = week.key, self.directory / file
        text = [json.dumps(one) for one in records]
        if self.file.suffix == ".csv":
            text = [",".join(week.columns), *(",".join(one.values()) for one in records)]
        self.file.write_bytes("".join(f"{line}\n" for line in text).encode("cp1252"))
        ages = self.ages()
        report = self.pipeline(fixed=False).run()
        self.keys_of_runs[report.run_id] = week.key
        self.oracle.run(replace(week, lines=lines), ages)

    def act(self, what: str, number: int) -> None:
        letters = self.letters()
        if what == "remove file":
            self.file.unlink(missing_ok=True)
        elif what == "dry run":
            before = self.table()
            self.store.dlq.replay(self.pipeline(fixed=True), batch=1 + number % 3)
            assert self.table() == before
        elif what == "replay":
            self.replay(batch=1 + number % 3)
        elif what == "replay one":
            self.replay(named=number)
        elif letters:
            name, letter = list(letters.items())[number % len(letters)]
            if what == "discard":
                self.store.dlq.discard(ids=[letter.id], note="x")
                self.oracle.discard(name)
            elif what == "escalate" and letter.status == "pending":
                self.store.dlq.escalate(ids=[letter.id], note="x")
            elif what.startswith("edit") and not isinstance(letter.record, bytes):
                row = IDS[number % len(IDS)]
                patch = {"fee": str(number)} if what == "edit fee" else {"id": row, "ref": ref_of(row)}
                self.store.dlq.edit(letter.id, patch=patch)
                self.oracle.edit(name, patch, self.ages())

    def replay(self, *, batch: int = 500, named: int | None = None) -> None:
        """Replay all open letters, or the one that is named by a number."""
        letters, ages = self.letters(), self.ages()
        order = list(letters)
        chosen = {}
        if named is not None and order:
            order = [order[named % len(order)]]
            chosen = {"ids": [letters[order[0]].id]}
        report = self.store.dlq.replay(self.pipeline(fixed=True), batch=batch, dry_run=False, **chosen)
        assert report.failed_again == 0
        assert report.reprocessed == self.oracle.replay(order, ages, batch)
        # What is not known to be older is written, and counted before.
        assert report.key_unknown >= self.oracle.overwritten

    def ages(self) -> dict[Name, Any]:
        """Return what sorts letters by their last sighting; settled ones, too."""
        return {name: _age(letter) for name, letter in self.letters(status="any").items()}

    def letters(self, status: str = "open") -> dict[Name, redrive.Letter]:
        """Return letters by what the oracle knows them by, in the order of a replay."""
        found: dict[Name, redrive.Letter] = {}
        for letter in sorted(self.store.dlq.each(pipeline=self.name, status=status), key=_age):
            record = letter.record
            if isinstance(record, bytes):
                columns = record.decode("cp1252").rstrip("\n").split(",")
                found[next(value for value in columns if value.startswith("b")), None, None] = letter
            else:
                found[record["id"], tuple(sorted(record.items())), self.keys_of_runs[letter.run_id]] = letter
        return found

    def table(self) -> dict[str, dict[str, Any]]:
        with sqlite3.connect(self.warehouse) as connection:
            rows = connection.execute("SELECT id, ref, name, fee, note FROM orders").fetchall()
        assert all(ref == ref_of(one) for one, ref, *_ in rows)
        return {one: {"name": name, "fee": fee, "note": note} for one, _, name, fee, note in rows}

    def check(self) -> None:
        assert self.table() == self.oracle.table
        assert set(self.letters()) == set(self.oracle.letters)
        superseded = {one for one, letter in self.letters().items() if letter.superseded_at is not None}
        assert superseded == {one for one, letter in self.oracle.letters.items() if letter.superseded}


def _age(letter: redrive.Letter) -> Any:
    return letter.last_seen, letter.id


STEPS = st.lists(st.tuples(weeks(), actions), min_size=1, max_size=3)
BATCHES = st.sampled_from([1, 2, 40_000])
_numbers = count()


def must_end_as_the_oracle_says(new_store: NewStore, directory: Path, steps: Any, batch: int) -> None:
    """Take all steps in a store of their own, then replay everything that is left, without the files."""
    with new_store("sqlite") as url, redrive.connect(url) as store:
        store.listeners = ()  # alerts take half the time of such small runs, and are not compared
        world = World(store, directory, next(_numbers), batch)
        for turn, ((week, file), choices) in enumerate(steps):
            world.run(week, file, turn)
            world.check()
            for what, choice in choices:
                world.act(what, choice)
                world.check()
        for left in world.directory.iterdir():
            left.unlink()
        world.replay()
        world.check()
