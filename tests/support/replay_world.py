"""Runs over changing files, decisions about letters and replays, in redrive and in its oracle at the same time."""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import pydantic
from hypothesis import strategies as st

import redrive
from tests.oracles.replays import NO_FEE, Line, Name, Oracle, Week
from tests.support.stores import NewStore

COLUMNS = ("id", "name", "fee")
IDS = ("1", "2", "3", "4", "5")
BAD_BYTE = "é"  # in cp1252: one byte, which is no UTF-8
NO_LIMIT = redrive.Gate(warn=1, page=1, abort=1)


@st.composite
def weeks(draw: st.DrawFn) -> Week:
    """A file: columns in any order, each id at most once, and lines that cannot be decoded."""
    columns = tuple(draw(st.permutations(COLUMNS)))
    names = st.sampled_from(["x", "y", "z"])
    fees = st.sampled_from(["1", "2", NO_FEE])
    lines = [Line(one, draw(names), draw(fees)) for one in draw(st.lists(st.sampled_from(IDS), unique=True))]
    lines += [Line(f"b{one}", draw(names) + BAD_BYTE, draw(fees), True) for one in range(draw(st.integers(0, 2)))]
    return Week(columns, tuple(draw(st.permutations(lines))))


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
    name: str
    fee: float


class World:
    """A store, a table and a file; every step is taken here and in the oracle."""

    def __init__(self, store: redrive.Store, directory: Path, number: int, batch: int) -> None:
        self.store, self.oracle, self.batch = store, Oracle(), batch
        self.name = f"vendor-{number}"
        self.file = directory / f"in-{number}.csv"
        self.warehouse = directory / f"out-{number}.db"
        with sqlite3.connect(self.warehouse) as connection:
            connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, name TEXT, fee REAL)")

    def pipeline(self, *, fixed: bool) -> redrive.Pipeline:
        def check(record: dict[str, Any]) -> dict[str, Any]:
            return {**record, "fee": 0.0 if record["fee"] == NO_FEE else float(record["fee"])}

        return redrive.Pipeline(
            self.name,
            source=redrive.rows.csv(self.file, **({"encoding": "cp1252"} if fixed else {})),
            validate=check if fixed else Order,
            sink=redrive.rows.table(f"sqlite:///{self.warehouse}", "orders", key="id"),
            batch=self.batch,
            gate=NO_LIMIT,
            store=self.store,
        )

    def run(self, week: Week, number: int) -> None:
        # An unreadable line has an id of its own in each file: its key is not known until it can be decoded.
        lines = tuple(
            Line(f"{one.id}-{number}" if one.unreadable else one.id, one.name, one.fee, one.unreadable)
            for one in week.lines
        )
        text = [",".join(week.columns), *(",".join(value for _, value in week.content(one)) for one in lines)]
        self.file.write_bytes("".join(f"{line}\n" for line in text).encode("cp1252"))
        self.pipeline(fixed=False).run()
        self.oracle.run(Week(week.columns, lines))

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
                patch = {"fee": str(number)} if what == "edit fee" else {"id": IDS[number % len(IDS)]}
                self.store.dlq.edit(letter.id, patch=patch)
                self.oracle.edit(name, patch)

    def replay(self, *, batch: int = 500, named: int | None = None) -> None:
        """Replay all open letters, or the one that is named by a number."""
        letters, every = self.letters(), self.letters(status="any")
        order = list(letters)
        chosen = {}
        if named is not None and order:
            order = [order[named % len(order)]]
            chosen = {"ids": [letters[order[0]].id]}
        report = self.store.dlq.replay(self.pipeline(fixed=True), batch=batch, dry_run=False, **chosen)
        assert report.failed_again == 0
        assert report.reprocessed == self.oracle.replay(order, {name: _age(every[name]) for name in every}, batch)

    def letters(self, status: str = "open") -> dict[Name, redrive.Letter]:
        """Return letters by what the oracle knows them by, in the order of a replay."""
        found: dict[Name, redrive.Letter] = {}
        for letter in sorted(self.store.dlq.each(pipeline=self.name, status=status), key=_age):
            record = letter.record
            if isinstance(record, bytes):
                columns = record.decode("cp1252").rstrip("\n").split(",")
                found[next(value for value in columns if value.startswith("b")), None] = letter
            else:
                found[record["id"], tuple(sorted(record.items()))] = letter
        return found

    def table(self) -> dict[str, tuple[str, float]]:
        with sqlite3.connect(self.warehouse) as connection:
            return {one: (name, fee) for one, name, fee in connection.execute("SELECT id, name, fee FROM orders")}

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
        world = World(store, directory, next(_numbers), batch)
        for turn, (week, choices) in enumerate(steps):
            world.run(week, turn)
            world.check()
            for what, choice in choices:
                world.act(what, choice)
                world.check()
        world.file.unlink(missing_ok=True)
        world.replay()
        world.check()
