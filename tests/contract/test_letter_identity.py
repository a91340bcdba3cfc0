"""Two different rows never share a letter; the same row, rejected again, never has two."""

from __future__ import annotations

import contextlib
import decimal
import sqlite3
from typing import Any

import pydantic
import pytest
import sqlalchemy

import redrive
from redrive.store.database import Database

GATE = redrive.Gate(abort=1)


def reject_everything(record: dict[str, Any]) -> None:
    raise ValueError("no price")


def run(store: redrive.Store, url: str, records: list[dict[str, Any]], **options: Any) -> redrive.Report:
    sink = redrive.rows.table(url, "lines", key=("order", "line"))
    options = {"validate": reject_everything, "gate": GATE, "store": store} | options
    return redrive.Pipeline("orders", source=redrive.rows.records(records, name="in"), sink=sink, **options).run()


def lines(*numbers: int) -> list[dict[str, Any]]:
    return [{"order": "A", "line": number} for number in numbers]


@pytest.fixture
def url(store: redrive.Store, store_url: str) -> str:
    engine = sqlalchemy.create_engine(store_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(
            sqlalchemy.text('CREATE TABLE lines ("order" TEXT, line INTEGER, PRIMARY KEY ("order", line))')
        )
    engine.dispose()
    return store_url


def records_of(store: redrive.Store, **filters: Any) -> list[Any]:
    return [letter.record for letter in store.dlq.each(**filters)]


class TestKeyWithEscapes:
    @pytest.mark.parametrize(
        ("key", "other"),
        [("a\0b", r"a\x00b"), ("\ud800", r"\ud800"), ("a\0b", "a\0b\0"), ("x" * 600 + "\0", "x" * 600 + r"\x00")],
    )
    def test_equal_text_of_another_key_is_another_letter(self, store, key, other):
        for fee, text in enumerate((key, other)):
            assert store.dlq.put({"fee": fee}, "no price", pipeline="orders", key=text).new == 1
            assert store.dlq.put({"fee": fee}, "no price", pipeline="orders", key=text).repeated == 1
        assert [letter.record["fee"] for letter in store.dlq.each()] == [0, 1]


class TestAmbiguousKey:
    def test_rows_of_a_later_run_do_not_replace_earlier_ones(self, store, url):
        run(store, url, lines(1, 2, 3), key="order")
        run(store, url, lines(7, 8), key="order")
        assert records_of(store) == lines(1, 2, 3, 7, 8)
        assert {letter.key for letter in store.dlq.each()} == {"A"}

    def test_replay_writes_every_row(self, store, url):
        run(store, url, lines(1, 2, 3), key="order")
        run(store, url, lines(7, 8), key="order")
        sink = redrive.rows.table(url, "lines", key=("order", "line"))
        fixed = redrive.Pipeline("orders", source=redrive.rows.records([], name="in"), sink=sink, store=store)
        assert store.dlq.replay(fixed, dry_run=False, pipeline="orders").reprocessed == 5
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            assert connection.execute(sqlalchemy.text("SELECT line FROM lines ORDER BY line")).scalars().all() == [
                *(1, 2, 3, 7, 8)
            ]
        engine.dispose()


class TestKeyMadeByTransform:
    def test_rows_that_share_a_field_are_letters_of_their_own(self, store, url):
        def with_tenant(record: dict[str, Any]) -> dict[str, Any]:
            return {"order": record["tenant"] + record["order"], "line": record["line"]}

        for tenant in "xy":
            record = {"order": "A", "line": 1, "tenant": tenant}
            run(store, url, [record], transform=with_tenant)
        assert [record["tenant"] for record in records_of(store)] == ["x", "y"]


class TestSameRow:
    def test_rejected_again_is_one_letter(self, store, url):
        run(store, url, lines(1))
        run(store, url, lines(1))
        (letter,) = store.dlq.each()
        assert (letter.seen, letter.status) == (2, "pending")

    def test_rejected_again_while_escalated_is_one_letter(self, store, url):
        run(store, url, lines(1))
        store.dlq.escalate(note="for the vendor", pipeline="orders")
        run(store, url, lines(1))
        (letter,) = store.dlq.each(status=("pending", "escalated"))
        assert (letter.seen, letter.status) == (2, "escalated")

    def test_twice_in_one_run_is_two_letters(self, store, url):
        run(store, url, lines(1, 1))
        assert records_of(store) == lines(1, 1)


class Line(pydantic.BaseModel):
    id: str
    price: int


def check_price(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "price": int(record["price"])}


@pytest.fixture
def nightly(store, tmp_path):
    """Return a function that loads a file of these lines."""

    def load(*lines: str, **options: Any) -> redrive.Report:
        (tmp_path / "in.csv").write_text("\n".join(["id,price", *lines, ""]))
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "lines", key="id", create=True)
        source = redrive.rows.csv(tmp_path / "in.csv")
        options = {"validate": check_price, "gate": GATE, "store": store} | options
        return redrive.Pipeline("orders", source=source, sink=sink, **options).run()

    return load


def seen(store: redrive.Store, **filters: Any) -> list[int]:
    return sorted(letter.seen for letter in store.dlq.each(**filters))


class TestMovedEqualRows:
    @pytest.mark.parametrize("batch", [1, 40_000])
    @pytest.mark.parametrize(
        ("validate", "line"),
        [(Line, "q,X"), (check_price, "q,X"), (None, "q,1,2")],
        ids=["model", "function", "line that cannot be read"],
    )
    def test_each_keeps_its_letter(self, store, nightly, batch, validate, line):
        def load(good: int, copies: int) -> None:
            nightly(*(f"g{number},1" for number in range(good)), *[line] * copies, validate=validate, batch=batch)

        for night in range(3):
            load(night, 4)
        assert seen(store) == [3] * 4
        load(0, 2)
        load(0, 5)
        assert seen(store) == [1, 4, 4, 5, 5]

    @pytest.mark.parametrize("batch", [1, 40_000])
    def test_open_letters_are_found_among_decided_ones(self, store, nightly, batch):
        nightly(*["q,X"] * 3, batch=batch)
        (first, *_) = (letter.id for letter in store.dlq.each())
        store.dlq.discard(ids=[first], note="the vendor knows")
        for night in range(3):
            nightly(*(f"g{number},1" for number in range(night)), *["q,X"] * 3, batch=batch)
        assert (seen(store, status="discarded"), seen(store, status="open")) == ([4], [4, 4])

    def test_size_of_the_batches_does_not_matter(self, store, nightly):
        nightly(*["q,X"] * 7, batch=2)
        nightly("g,1", *["q,X"] * 7, batch=3)
        assert seen(store) == [2] * 7


class TestFilesOfOtherNames:
    """A vendor sends the full file every night, under the date."""

    @pytest.fixture
    def nightly(self, store, tmp_path):
        def pipeline(**files: str) -> redrive.Pipeline:
            folder = tmp_path / "in"
            folder.mkdir(exist_ok=True)
            for old in folder.iterdir():
                old.unlink()
            for name, lines in files.items():
                (folder / f"{name}.csv").write_text("\n".join(["id,price", *lines.split(), ""]))
            (source,) = folder.iterdir() if len(files) == 1 else [folder / "*.csv"]
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "lines", key="id", create=True)
            options = {"validate": Line, "gate": GATE, "store": store}
            return redrive.Pipeline("orders", source=redrive.rows.csv(source), sink=sink, **options)

        return pipeline

    def test_row_keeps_its_letter(self, store, nightly):
        for night in range(3):
            nightly(**{f"lines-{night}": "g,1 q,X"}).run()
        (letter,) = store.dlq.each()
        assert (letter.seen, letter.source.rpartition("/")[2]) == (3, "lines-2.csv")

    def test_changed_row_keeps_its_letter(self, store, nightly):
        for night in range(3):
            nightly(**{f"lines-{night}": f"g,1 q,X{night}"}).run()
        (letter,) = store.dlq.each()
        assert (letter.seen, letter.record["price"]) == (3, "X2")

    @pytest.mark.parametrize("decision", ["discard", "replay"])
    def test_decision_holds(self, store, nightly, decision):
        monday = nightly(monday="g,1 q,X")
        monday.run()
        if decision == "discard":
            store.dlq.discard(pipeline="orders", note="the vendor knows")
        else:
            store.dlq.edit(next(iter(store.dlq.each())).id, {"id": "q", "price": "4"}, note="asked the vendor")
            assert store.dlq.replay(monday, dry_run=False, pipeline="orders").reprocessed == 1
        report = nightly(tuesday="q,X g,1").run()
        (letter,) = store.dlq.each(status="any")
        assert (letter.seen, letter.source.rpartition("/")[2], report.status) == (2, "tuesday.csv", "complete")
        assert letter.status == {"discard": "discarded", "replay": "reprocessed"}[decision]

    def test_rows_of_two_files_of_one_run_are_two_letters(self, store, nightly):
        nightly(north="q,X", south="q,X").run()
        nightly(north="q,X", south="q,X").run()
        assert seen(store) == [2, 2]
        assert sorted(letter.source.rpartition("/")[2] for letter in store.dlq.each()) == ["north.csv", "south.csv"]

    def test_changed_rows_of_two_files_in_a_run_are_two_letters(self, store, nightly):
        nightly(north="q,X", south="q,Y").run()
        nightly(north="q,Y", south="q,Z").run()
        assert sorted(record["price"] for record in records_of(store)) == ["Y", "Z"]

    @pytest.mark.parametrize("price", ["X", "Y"], ids=["unchanged", "changed"])
    def test_letter_identified_by_its_source_is_matched(self, store, nightly, price):
        """As older versions identified the rows of runs, and as letters stored with a key are identified."""
        monday = nightly(monday="g,1 q,X")
        monday.run()
        (letter,) = store.dlq.each()
        known_by = {"pipeline": "orders", "key": "q", "source": letter.source, "error_type": letter.error_type}
        store.dlq.put(letter.record, letter.error_message, **known_by)
        store.dlq.discard(ids=[letter.id], note="leaves the other one")
        nightly(monday=f"g,1 q,{price}").run()
        (other,) = store.dlq.each(status="open")
        assert (other.seen, other.record["price"]) == (2, price)

    def test_line_that_cannot_be_read_keeps_its_letter(self, store, nightly):
        for night in ("monday", "tuesday"):
            nightly(**{night: "g,1 q,1,2"}).run()
        assert seen(store) == [2]


class TestColumnsInAnotherOrder:
    """A vendor exports the columns of a file in another order: the rows are the same."""

    @pytest.fixture
    def load(self, store, tmp_path):
        def load(*lines: str, validate: Any) -> redrive.Pipeline:
            (tmp_path / "in.csv").write_text("\n".join([*lines, ""]))
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "lines", key="id", create=True)
            source = redrive.rows.csv(tmp_path / "in.csv")
            pipeline = redrive.Pipeline("orders", source=source, sink=sink, validate=validate, gate=GATE, store=store)
            pipeline.run()
            return pipeline

        return load

    @pytest.mark.parametrize("validate", [Line, check_price], ids=["key is sure", "key is not sure"])
    def test_open_letter_is_one_and_keeps_its_edit(self, store, load, validate):
        load("id,price", "q,X", "q,X", validate=validate)
        for letter in store.dlq.each():
            store.dlq.edit(letter.id, patch={"price": "4"})
        load("price,id", "X,q", "X,q", validate=validate)
        assert [(letter.seen, letter.edited) for letter in store.dlq.each()] == [(2, True)] * 2
        assert "superseded" not in [event.action for event in store.dlq.history("q").events]

    @pytest.mark.parametrize("validate", [Line, check_price], ids=["key is sure", "key is not sure"])
    @pytest.mark.parametrize("decision", ["discard", "replay"])
    def test_decision_holds(self, store, load, validate, decision):
        pipeline = load("id,price", "q,X", validate=validate)
        (letter,) = store.dlq.each()
        if decision == "discard":
            store.dlq.discard(ids=[letter.id], note="the vendor knows")
        else:
            store.dlq.edit(letter.id, patch={"price": "4"})
            assert store.dlq.replay(pipeline, dry_run=False, pipeline="orders").reprocessed == 1
        load("price,id", "X,q", validate=validate)
        assert [(one.id, one.seen) for one in store.dlq.each(status="any")] == [(letter.id, 2)]

    def test_letter_that_is_put_keeps_its_edit_and_its_decision(self, store):
        record = {"id": 7, "fee": decimal.Decimal("1.50"), "lines": [{"a": (1, 2), "b": {"x": b"\xff", "y": 1e22}}]}
        moved = {"lines": [{"b": {"y": 1e22, "x": b"\xff"}, "a": (1, 2)}], "fee": decimal.Decimal("1.50"), "id": 7}

        def put(*records: Any) -> redrive.Stored:
            letters = [redrive.NewLetter(one, "bad", key="7", context={"a": 1, "b": 2}) for one in records]
            letters += [redrive.NewLetter(one, "bad", key="7", context={"b": 2, "a": 1}) for one in records]
            return store.dlq.put_many(letters, pipeline="orders")

        put(record, moved)
        (letter,) = store.dlq.each()
        store.dlq.edit(letter.id, patch={"id": 8})
        put(moved, record)
        (letter,) = store.dlq.each()
        assert (letter.seen, letter.edited) == (8, True)
        assert [event.action for event in store.dlq.history("7").events] == ["edited"]
        store.dlq.discard(ids=[letter.id], note="the vendor knows")
        assert put(moved, record).decided == 4

    def test_list_in_another_order_is_a_change(self, store):
        for listed in ([1, 2], [2, 1]):
            store.dlq.put({"id": 7, "listed": listed}, "bad", pipeline="orders", key="7")
        assert "superseded" in [event.action for event in store.dlq.history("7").events]

    def test_changed_value_is_a_change(self, store, load):
        load("id,price", "q,X", validate=Line)
        (letter,) = store.dlq.each()
        store.dlq.edit(letter.id, patch={"price": "4"})
        load("price,id", "Y,q", validate=Line)
        (letter,) = store.dlq.each()
        assert (letter.seen, letter.edited, letter.record) == (2, False, {"id": "q", "price": "Y"})


class TestKeyChangedByFunction:
    @staticmethod
    def load(store, url, orders: list[dict[str, Any]], **options: Any) -> None:
        run(store, url, [{"line": 1, **order} for order in orders], **options)

    @staticmethod
    def check(record: dict[str, Any]) -> None:
        if not record.pop("price"):
            raise ValueError("no price")
        del record["day"]

    @classmethod
    def with_tenant(cls, record: dict[str, Any]) -> dict[str, Any]:
        cls.check(record)
        return {"order": record["tenant"] + record["order"], "line": record["line"]}

    @pytest.mark.parametrize("in_transform", [False, True], ids=["validate", "transform"])
    def test_changed_row_of_a_key_keeps_its_letter(self, store, url, in_transform):
        function = {"transform": lambda record: self.check(record) or record, "validate": None}
        for day in (1, 2, 3):
            orders = [{"order": order, "price": price, "day": day} for order, price in (("A", 4), ("B", 0))]
            self.load(store, url, orders, **(function if in_transform else {"validate": self.check}))
        (letter,) = store.dlq.each()
        assert (letter.record["day"], letter.seen) == (3, 3)
        before = [entry.detail["raw_record"]["day"] for entry in store.dlq.audit(letter.id)]
        assert before == [1, 2]

    def test_rows_are_apart_where_the_function_changes_the_key(self, store, url):
        for day, tenant in enumerate("xy"):
            orders = [{"order": "A", "price": price, "day": day, "tenant": tenant} for price in (4, 0)]
            self.load(store, url, orders, validate=self.with_tenant)
        assert [record["tenant"] for record in records_of(store)] == ["x", "y"]

    def test_rows_are_apart_where_no_row_has_passed(self, store, url):
        for day in (1, 2):
            self.load(store, url, [{"order": "A", "price": 0, "day": day}], validate=self.check)
        assert [record["day"] for record in records_of(store)] == [1, 2]

    @pytest.mark.parametrize("decided", [False, True], ids=["open", "decided"])
    @pytest.mark.parametrize("nights", [("B", "BG"), ("BG", "B"), ("BG", "B", "BG", "GB")], ids="-".join)
    def test_unchanged_row_keeps_its_letter_with_or_without_key(self, store, nightly, nights, decided):
        rows = {"B": "q,X", "G": "g,1"}
        for number, night in enumerate(nights):
            nightly(*(rows[name] for name in night), validate=Line, transform=lambda record: record, batch=1)
            if decided and not number:
                store.dlq.discard(pipeline="orders", note="the vendor knows")
        assert seen(store) == [len(nights)]

    def test_later_row_supersedes_letter_once_its_key_is_known(self, store, nightly):
        options = {"validate": Line, "transform": lambda record: record}
        nightly("q,X", **options)
        nightly("g,1", "q,X", **options)
        nightly("g,1", "q,4", **options)
        (letter,) = store.dlq.each()
        assert letter.superseded_at is not None

    def test_decided_row_stays_so_where_no_row_has_passed(self, store, url):
        row = {"order": "A", "price": 0, "day": 1}
        self.load(store, url, [row, {"order": "B", "price": 4, "day": 1}], validate=self.check)
        store.dlq.discard(pipeline="orders", note="the vendor knows")
        self.load(store, url, [row], validate=self.check)
        assert [(str(letter.status), letter.seen) for letter in store.dlq.each()] == [("discarded", 2)]


def test_duplicate_row_is_found_by_its_key(store, url):
    run(store, url, lines(1, 1), validate=None, on_duplicate="quarantine")
    assert [letter.record for letter in store.dlq.history("A|1").letters] == lines(1)


def test_migration_keeps_pending_and_escalated_letter(store: redrive.Store):
    """Before, a record that was rejected again while its letter was escalated became a second letter."""
    database: Database = store.database
    for number in (1, 2):
        store.dlq.put({"id": number}, "no price", pipeline="orders", key=str(number))
    where = "pipeline." if database.dialect.is_remote else ""

    def work(connection: sqlalchemy.Connection) -> None:
        from redrive.store.migrations.versions import v0005_letter_origins as step

        schema = "pipeline" if database.dialect.is_remote else None
        connection.execute(sqlalchemy.text(f"DROP INDEX {where}dead_letter_queue_identity"))
        connection.execute(
            sqlalchemy.text(
                f"UPDATE {where}dead_letter_queue SET status = 'escalated', identity = "
                f"(SELECT identity FROM {where}dead_letter_queue WHERE source_key = '2') WHERE source_key = '1'"
            )
        )
        pending = "(CASE WHEN status = 'pending' THEN 1 END)"
        connection.execute(
            sqlalchemy.text(
                f"CREATE UNIQUE INDEX dead_letter_queue_identity ON {where}dead_letter_queue (identity, {pending})"
            )
        )
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        with Operations.context(MigrationContext.configure(connection)):
            step._index_open_letters(schema, schema is not None)

    database.write(work)
    assert sorted(letter.key for letter in store.dlq.each(status=("pending", "escalated"))) == ["1", "2"]
    store.dlq.put({"id": 2}, "no price", pipeline="orders", key="2")
    assert {letter.key: letter.seen for letter in store.dlq.each(status=("pending", "escalated"))} == {"1": 1, "2": 2}


class TestRowsComparedByTable:
    """If the table chooses among the rows of a key, each rejected row keeps its own letter."""

    @pytest.mark.parametrize(
        ("mode", "left"),
        [({"newer": "at"}, ("late", "2026-07-03")), ({"on_conflict": "ignore"}, ("first", "2026-07-03"))],
        ids=["newer", "ignore"],
    )
    def test_later_rejected_row_does_not_replace_the_current(self, store, tmp_path, mode, left):
        with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, fee TEXT, at TEXT)")

        def pipeline(*records, check=None):
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 't.db'}", "t", key="id", **mode)
            source = redrive.rows.records(list(records), name="in")
            return redrive.Pipeline(
                "fees", source=source, validate=check, sink=sink, store=store, gate=redrive.Gate(abort=1)
            )

        def reject(record):
            if record["id"] == 1:
                raise ValueError("no fee")

        other = {"id": 2, "fee": "x", "at": "2026-07-01"}
        fees = ("late", "old") if "newer" in mode else ("first", "second")
        pipeline({"id": 1, "fee": fees[0], "at": "2026-07-03"}, other, check=reject).run()
        pipeline({"id": 1, "fee": fees[1], "at": "2026-06-01"}, other, check=reject).run()
        assert sorted(letter.record["fee"] for letter in store.dlq.each()) == sorted(fees)
        store.dlq.replay(pipeline(), dry_run=False)
        with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection:
            assert connection.execute("SELECT fee, at FROM t WHERE id = 1").fetchall() == [left]
