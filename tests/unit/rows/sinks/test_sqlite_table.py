"""SQLite as a sink: an existing file, triggers that end transactions, deferred keys."""

import random
import sqlite3
import threading
import time

import pytest
from sqlalchemy import text

import redrive
from redrive.errors import SinkMismatch, StoreError
from redrive.model.calls import Kind
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table import table


def rows_of(records):
    return Outgoing.of_records(records, range(len(records)))


def places(refused):
    return [one.place for one in refused]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data of 100%.db"


@pytest.fixture
def sql(path):
    connection = sqlite3.connect(path, isolation_level=None)
    yield lambda statement: connection.execute(statement).fetchall()
    connection.close()


@pytest.fixture
def sink(path):
    made = []

    def make(name="t", *, key="id", **options):
        made.append(table(f"sqlite:///{path}", name, key=key, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class CountingCursor(sqlite3.Cursor):
    calls = 0

    def execute(self, *args):
        CountingCursor.calls += 1
        return super().execute(*args)

    def executemany(self, *args):
        CountingCursor.calls += 1
        return super().executemany(*args)


class CountingConnection(sqlite3.Connection):
    def cursor(self, factory=CountingCursor):
        return super().cursor(factory)


def test_ten_bad_rows_in_fifty_thousand_cost_few_statements(sql, sink, monkeypatch):
    sql("CREATE TABLE city (id integer PRIMARY KEY)")
    sql("INSERT INTO city VALUES (1), (2)")
    sql("CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city, fee real CHECK (fee < 1e6)) STRICT")
    bad = sorted(random.Random(4).sample(range(50_000), 10))
    faults = [{"city": 777}, {"fee": 1e9}, {"fee": "N/A"}]
    records = [{"id": n, "city": n % 2 + 1, "fee": 1.5} for n in range(50_000)]
    for at, place in enumerate(bad):
        records[place] |= faults[at % 3]
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, factory=CountingConnection, **options))
    target = sink()
    target.check(tuple(records[0]))
    for _ in range(2):
        CountingCursor.calls = 0
        assert places(target.write(rows_of(records), label="a")) == bad
        assert 10 < CountingCursor.calls <= 200
        assert sql("SELECT count(*) FROM t") == [(49_990,)]


def test_29_rows_before_a_rejected_row_are_written_once(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, a text NOT NULL)")
    sql("CREATE TABLE log (id integer)")
    sql("CREATE TRIGGER l AFTER INSERT ON t BEGIN INSERT INTO log VALUES (NEW.id); END")
    refused = sink().write(rows_of([{"id": n, "a": None if n % 3 == 1 else "x"} for n in range(9)]), label="a")
    assert places(refused) == [1, 4, 7]
    assert refused[0].error == "NOT NULL constraint failed: t.a"
    assert sql("SELECT id FROM log") == [(0,), (2,), (3,), (5,), (6,), (8,)]


@pytest.mark.parametrize("action", ["ABORT", "FAIL", "ROLLBACK"])
@pytest.mark.parametrize("moment", ["BEFORE", "AFTER"])
def test_row_rejected_by_a_trigger_leaves_nothing(sql, sink, action, moment):
    sql("CREATE TABLE t (id integer PRIMARY KEY, a text)")
    sql(
        f"""CREATE TRIGGER bad {moment} INSERT ON t WHEN NEW.id % 10 = 3
            BEGIN SELECT RAISE({action}, 'unlucky number'); END"""
    )
    target = sink()
    rows = rows_of([{"id": n, "a": "x"} for n in range(40)])
    assert places(target.rehearse(rows)) == [3, 13, 23, 33]
    assert sql("SELECT count(*) FROM t") == [(0,)]
    for _ in range(2):
        refused = target.write(rows, label="a")
        assert places(refused) == [3, 13, 23, 33]
        assert {one.error for one in refused} == {"unlucky number"}
        assert sql("SELECT count(*), count(CASE WHEN id % 10 = 3 THEN 1 END) FROM t") == [(36, 0)]


def test_deferred_foreign_keys_are_checked_within_the_write(sql, sink):
    sql("CREATE TABLE parent (a integer, b text, PRIMARY KEY (a, b))")
    sql("INSERT INTO parent VALUES (1, 'x')")
    sql(
        """CREATE TABLE t (id integer PRIMARY KEY, a integer, b text,
                           FOREIGN KEY (a, b) REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"""
    )
    keys = [(1, "x"), (1, "y"), (None, "y"), ("1", "x"), (2, "x")]
    refused = sink().write(rows_of([{"id": n, "a": a, "b": b} for n, (a, b) in enumerate(keys)]), label="a")
    assert places(refused) == [1, 4]
    assert refused[0].error == "FOREIGN KEY constraint failed: (a, b)=(1, y) is not present in parent"
    assert sql("SELECT id FROM t") == [(0,), (2,), (3,)]


def test_target_of_a_broken_foreign_key_is_reported(sql, sink):
    sql("CREATE TABLE city (id integer PRIMARY KEY)")
    sql("CREATE TABLE t (id integer PRIMARY KEY, other integer REFERENCES city, city integer REFERENCES city (id))")
    (refused,) = sink().write(rows_of([{"id": 1, "city": 9}]), label="a")
    assert refused.error == "FOREIGN KEY constraint failed: (city)=(9) is not present in city"


# ── a file of another program ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["delete", "wal", "truncate"])
def test_journal_and_page_size_of_the_file_are_unchanged(path, sql, sink, mode):
    sql("PRAGMA page_size = 8192")
    sql(f"PRAGMA journal_mode = {mode}")
    sql("CREATE TABLE t (id integer PRIMARY KEY)")
    target = sink()
    target.check(("id",))
    target.write(rows_of([{"id": 1}]), label="a")
    if mode != "truncate":  # which each connection chooses for itself
        assert sql("PRAGMA journal_mode") == [(mode,)]
    assert sql("PRAGMA page_size") == [(8192,)]


def test_no_file_or_directory_is_created_by_default(tmp_path):
    missing = tmp_path / "missing.db"
    target = table(f"sqlite:///{missing}", "t", key="id")
    for use in (lambda: target.check(("id",)), lambda: target.write(rows_of([{"id": 1}]), label="a")):
        with pytest.raises(SinkMismatch, match=r"no database .*missing\.db; name another file, or pass create"):
            use()
    assert not missing.exists()
    nowhere = tmp_path / "no" / "such.db"
    with pytest.raises(SinkMismatch, match=r"the directory .*no does not exist"):
        table(f"sqlite:///{nowhere}", "t", key="id", create=True).check(("id",))
    assert not nowhere.parent.exists()


def test_file_is_created_on_request(tmp_path):
    target = table(f"sqlite:///{tmp_path / 'new.db'}", "t", key="id", create=True)
    target.write(rows_of([{"id": 1, "a": "x"}]), label="a")
    target.close()
    with sqlite3.connect(tmp_path / "new.db") as found:
        assert found.execute("SELECT * FROM t").fetchall() == [(1, "x")]
    found.close()


def test_file_that_is_no_database_is_one_sentence(path, sink):
    path.write_text("a diary, perhaps " * 100)
    with pytest.raises(StoreError, match="it is no SQLite database; name another file") as told:
        sink().check(("id",))
    assert told.value.kind is Kind.PERMANENT


def test_writer_that_locks_the_file_is_waited_for(path, sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY)")
    target = sink()
    target.check(("id",))
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    leaving = threading.Thread(target=lambda: (time.sleep(0.2), holder.execute("COMMIT")))
    leaving.start()
    assert list(target.write(rows_of([{"id": 1}]), label="a")) == []
    leaving.join()
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process keeps the file locked") as told:
        sink(patience=0.1).write(rows_of([{"id": 2}]), label="a")
    assert told.value.kind is Kind.TRANSIENT
    holder.close()


def test_many_writers_of_the_same_keys_write_in_turn(path, sql):
    sql("CREATE TABLE t (id integer PRIMARY KEY, who integer)")
    failures = []

    def write(who):
        target = table(f"sqlite:///{path}", "t", key="id")
        try:
            for _ in range(5):
                failures.extend(target.write(rows_of([{"id": n, "who": who} for n in range(50)]), label="a"))
        except Exception as error:
            failures.append(error)
        target.close()

    writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert sql("SELECT count(*), count(DISTINCT who) FROM t") == [(50, 1)]


# ── one transaction with the store ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "store.db") as opened:
        opened.database.write(lambda connection: connection.execute(text("CREATE TABLE city (id integer PRIMARY KEY)")))
        yield opened


def made(store, statement):
    store.database.write(lambda connection: connection.execute(text(statement)))


def test_rows_and_letters_are_committed_together_or_not_at_all(store, tmp_path):
    made(store, "CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city, a text NOT NULL)")
    target = table(f"sqlite:///{tmp_path / 'store.db'}", "t", key="id")
    assert target.lives_in(store.database)
    rows = rows_of(
        [{"id": 1, "city": None, "a": "x"}, {"id": 2, "city": None, "a": None}, {"id": 3, "city": 9, "a": "y"}]
    )

    def work(connection, *, fails):
        assert places(target.write_within(connection, rows)) == [1, 2]  # also where the store looks at no foreign key
        if fails:
            raise KeyError("the caller changed his mind")
        return connection.execute(text("SELECT count(*) FROM t")).scalar_one()

    with pytest.raises(KeyError):
        store.database.write(lambda connection: work(connection, fails=True))
    count = store.database.read(lambda connection: connection.execute(text("SELECT count(*) FROM t")).scalar_one())
    assert count == 0
    assert store.database.write(lambda connection: work(connection, fails=False)) == 1
    target.close()


def test_same_file_by_another_name_is_the_same_place(store, tmp_path, monkeypatch):
    made(store, "CREATE TABLE t (id integer PRIMARY KEY)")
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    monkeypatch.chdir(tmp_path)
    same = ["sqlite:///store.db", f"sqlite:///{tmp_path}/link.db", f"sqlite:///{tmp_path}/../{tmp_path.name}/store.db"]
    for url in same:
        target = table(url, "t", key="id")
        assert target.lives_in(store.database)
        target.close()
    assert not table("sqlite:///other.db", "t", key="id", create=True).lives_in(store.database)


def test_table_that_may_end_a_transaction_shares_none(store, tmp_path):
    made(store, "CREATE TABLE t (id integer PRIMARY KEY)")
    made(store, "CREATE TRIGGER x BEFORE INSERT ON t WHEN NEW.id = 1 BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
    target = table(f"sqlite:///{tmp_path / 'store.db'}", "t", key="id")
    assert not target.lives_in(store.database)
    assert places(target.write(rows_of([{"id": 0}, {"id": 1}, {"id": 2}]), label="a")) == [1]
    target.close()


def test_row_blocked_only_by_a_rejected_row_is_written(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, boss integer REFERENCES t, code text UNIQUE)")
    rows = [{"id": 1, "boss": 99, "code": "x"}, {"id": 2, "boss": None, "code": "x"}, {"id": 3, "boss": 1, "code": "y"}]
    assert places(sink().write(rows_of(rows), label="a")) == [0, 2]
    assert sql("SELECT id FROM t") == [(2,)]


@pytest.mark.parametrize("rule", ["UNIQUE ON CONFLICT IGNORE", "NOT NULL ON  CONFLICT\nreplace DEFAULT 5"])
def test_table_that_drops_rows_silently_is_not_written(sql, sink, rule):
    sql(f"CREATE TABLE t (id integer PRIMARY KEY, a integer {rule})")
    for attempt in (lambda: sink().check(("id", "a")), lambda: sink().write(rows_of([{"id": 1, "a": 1}]), label="a")):
        with pytest.raises(SinkMismatch, match="t is defined with ON CONFLICT IGNORE or REPLACE"):
            attempt()


def test_table_for_integers_beyond_64_bits_stores_them(sql, sink):
    rows = rows_of([{"id": 1, "n": 2**64}, {"id": 2, "n": 1}])
    assert list(sink(create=True).write(rows, label="a")) == []
    assert sql("SELECT n FROM t ORDER BY id") == [(str(2**64),), ("1",)]


def test_booleans_in_a_text_column_are_text(sql, sink):
    records = [{"id": 1, "v": "x"}, {"id": 2, "v": True}, {"id": 3, "v": False}, {"id": 4, "v": 1}]
    assert list(sink(create=True).write(rows_of(records), label="a")) == []
    assert sql("SELECT v FROM t ORDER BY id") == [("x",), ("true",), ("false",), ("1",)]


class TestFunctionErrors:
    """SQLite has one code for malformed JSON in a trigger's function and for a missing column."""

    def test_row_with_a_failing_function_is_rejected(self, sink, sql):
        sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT CHECK (json_extract(v, '$.a') > 0))")
        rows = [{"id": number, "v": "{" if number == 7 else '{"a": 1}'} for number in range(20)]
        [refused] = sink().write(rows_of(rows), label="run/0")
        assert (refused.place, str(refused.error)) == (7, "malformed JSON")
        assert sql("SELECT count(*) FROM t") == [(19,)]

    def test_error_of_every_row_ends_the_write(self, sink, sql):
        sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
        sql("CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT json_extract('{', '$.a'); END")
        with pytest.raises(redrive.errors.StoreError, match="malformed JSON"):
            sink().write(rows_of([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]), label="run/0")


class TestDeletionRollback:
    """A trigger that ends the transaction takes no row along but its own."""

    @pytest.mark.parametrize("event", ["INSERT", "DELETE"])
    def test_only_the_bad_row_is_rejected(self, sql, sink, event):
        sql("CREATE TABLE t (id integer PRIMARY KEY, v text)")
        sql("INSERT INTO t VALUES (0, 'old'), (5, 'old')")
        row = "NEW" if event == "INSERT" else "OLD"
        sql(f"CREATE TRIGGER x BEFORE {event} ON t WHEN {row}.id IN (5, 6) BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
        ops = ["D", "U", "D", "U", "U", "D" if event == "DELETE" else "U", "U", "U"]
        rows = [{"id": at, "v": "new", "op": op} for at, op in enumerate(ops)]
        refused = sink(delete_when={"op": "D"}).write(rows_of(rows), label="a")
        bad = [5, 6] if event == "INSERT" else [5]
        assert places(refused) == bad
        kept = [at for at, op in enumerate(ops) if op == "U" and at not in bad]
        assert sql("SELECT id FROM t WHERE v = 'new' ORDER BY id") == [(at,) for at in kept]
        assert sql("SELECT id FROM t WHERE v = 'old'") == [(5,)]
