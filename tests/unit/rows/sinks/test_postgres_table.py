"""PostgreSQL as a sink: COPY, triggers, deferred constraints, concurrent writers, a restarting server."""

import datetime as dt
import gc
import itertools
import random
import threading
import time
import uuid
from decimal import Decimal

import polars as pl
import psycopg
import pytest
from sqlalchemy import make_url

import redrive
from redrive.errors import SinkMismatch, StoreError
from redrive.model.calls import Kind
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.postgres.copy import faulty_line
from redrive.rows.sinks.table import table

_serial = itertools.count()


def rows_of(records):
    return Outgoing.of_records(records, range(len(records)))


def frame_of(records, **dtypes):
    frame = pl.DataFrame(records, schema_overrides=dtypes, infer_schema_length=None)
    return Outgoing.of_frame(frame, range(len(records)))


@pytest.fixture(scope="module")
def database(postgres_url):
    """The URL of a database of this module's own."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE postgres_tables")
    yield postgres_url.rpartition("/")[0] + "/postgres_tables"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP DATABASE postgres_tables WITH (FORCE)")


@pytest.fixture
def sql(database):
    with psycopg.connect(database, autocommit=True) as connection:

        def run(statement):
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

        yield run
        run("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def sink(database):
    made = []

    def make(name="t", *, key="id", **options):
        made.append(table(database, name, key=key, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def statements(monkeypatch):
    """Every statement that the driver sends, those of one message counted one by one."""
    sent = []

    def counting(real):
        def counted(self, query, *args, **options):
            sent.extend(part.strip() for part in str(query).split(";"))
            return real(self, query, *args, **options)

        return counted

    for name in ("execute", "copy"):
        monkeypatch.setattr(psycopg.Cursor, name, counting(getattr(psycopg.Cursor, name)))
    return sent


def places(refused):
    return [one.place for one in refused]


# ── two ways in ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_new_rows_are_copied_until_one_is_not_new(sql, sink, statements):
    sql("CREATE TABLE t (id integer PRIMARY KEY, a text)")
    target = sink()

    def straight(first, count=10):
        statements.clear()
        assert target.write(frame_of([{"id": n, "a": "x"} for n in range(first, first + count)]), label="a") == []
        return [one.startswith('COPY "t"') for one in statements if one.startswith("COPY")]

    assert straight(0) == [True]
    assert straight(10) == [True]
    assert straight(15) == [True, False]
    assert straight(100) == [False]  # for good: what a failed COPY leaves behind must be cleaned up by the server
    assert sql("SELECT count(*) FROM t") == [(35,)]


@pytest.mark.parametrize(
    "why",
    [
        "CREATE TRIGGER w AFTER UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION nothing()",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING",
    ],
)
def test_table_where_copy_differs_from_insert_is_never_copied(sql, sink, statements, why):
    sql("CREATE TABLE t (id integer PRIMARY KEY, a text)")
    sql("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    sql(why)
    assert sink().write(frame_of([{"id": 1, "a": "x"}]), label="a") == []
    assert not any(one.startswith('COPY "t"') for one in statements)
    assert sql("SELECT * FROM t") == [(1, "x")]


def test_loads_of_one_transaction_do_not_mix_their_rows(sql, sink, database):
    sql("CREATE TABLE t (id integer PRIMARY KEY, a text)")
    target = sink()
    target.write(rows_of([{"id": 0, "a": "x"}]), label="a")
    with redrive.connect(database, migrate=True) as store:

        def work(connection):
            for n in range(3):
                target.write_within(connection, rows_of([{"id": 0, "a": f"{n}"}, {"id": n + 1, "a": "y"}]))
            return connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one()

        assert store.database.write(work) == 4
    sql("DROP SCHEMA pipeline CASCADE")
    assert sql("SELECT a FROM t WHERE id = 0") == [("2",)]


# ── what only the server can know ─────────────────────────────────────────────────────────────────────────────────────


def test_ten_bad_rows_in_fifty_thousand_cost_few_statements(sql, sink, statements):
    sql("CREATE TABLE city (id integer PRIMARY KEY)")
    sql("INSERT INTO city SELECT generate_series(0, 99)")
    sql(
        """CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city, fee numeric(8, 2) CHECK (fee >= 0),
                           vendor text NOT NULL)"""
    )
    bad = dict(zip(sorted(random.Random(4).sample(range(50_000), 10)), itertools.cycle("abc"), strict=False))
    faults = {"a": {"city": 777}, "b": {"fee": -1.0}, "c": {"fee": 12345678.9}, None: {}}
    records = [
        {"id": n, "city": n % 100, "fee": 1.5, "vendor": "line\nline"} | faults[bad.get(n)] for n in range(50_000)
    ]
    target = sink()
    target.check(tuple(records[0]))
    for rows in (frame_of(records), rows_of(records)):
        statements.clear()
        assert places(target.write(rows, label="a")) == sorted(bad)
        assert len(statements) <= 200
        assert sql("SELECT count(*) FROM t") == [(49_990,)]


def test_trigger_may_fix_a_row_before_the_constraints(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, a text NOT NULL, n integer CHECK (n > 0))")
    sql(
        """CREATE FUNCTION mend() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN NEW.a := coalesce(NEW.a, ''mended''); NEW.n := abs(NEW.n); RETURN NEW; END'"""
    )
    sql("CREATE TRIGGER mend BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION mend()")
    records = [{"id": 1, "a": None, "n": -5}, {"id": 2, "a": "x", "n": 0}, {"id": 3, "a": "y", "n": 1}]
    assert places(sink().write(frame_of(records), label="a")) == [1]
    assert sql("SELECT * FROM t ORDER BY id") == [(1, "mended", 5), (3, "y", 1)]


def test_row_rejected_by_a_trigger_has_its_message(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY)")
    sql(
        """CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN IF NEW.id % 100 = 13 THEN RAISE EXCEPTION ''unlucky number''; END IF; RETURN NULL; END'"""
    )
    late = "DEFERRABLE INITIALLY DEFERRED"
    sql(f"CREATE CONSTRAINT TRIGGER odd AFTER INSERT ON t {late} FOR EACH ROW EXECUTE FUNCTION odd()")
    refused = sink().write(frame_of([{"id": n} for n in range(500)]), label="a")
    assert places(refused) == [13, 113, 213, 313, 413]
    assert {one.error for one in refused} == {"unlucky number"}
    assert sql("SELECT count(*) FROM t") == [(495,)]


def test_deferred_constraint_is_checked_within_the_write(sql, sink):
    sql("CREATE TABLE parent (a integer, b integer, PRIMARY KEY (a, b))")
    sql("INSERT INTO parent VALUES (1, 1)")
    sql(
        """CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer, code text,
                           FOREIGN KEY (a, b) REFERENCES parent DEFERRABLE INITIALLY DEFERRED,
                           UNIQUE (code) DEFERRABLE INITIALLY DEFERRED)"""
    )
    keys = [(1, 1), (1, 2), (None, 9), (2, None), (2, 2)]
    records = [{"id": n, "a": a, "b": b, "code": "x" if n in (0, 2) else str(n)} for n, (a, b) in enumerate(keys)]
    refused = sink().write(frame_of(records), label="a")
    assert places(refused) == [1, 2, 4]
    assert "Key (a, b)=(1, 2) is not present in public.parent" in refused[0].error
    assert "Key (code)=(x) already exists" in refused[1].error
    with pytest.raises(SinkMismatch, match="no unique index of t is on column 'code' alone"):
        sink(key="code").check(("id", "code"))


def test_bad_rows_are_found_without_select_on_referenced_table(sql, sink, database):
    sql("CREATE TABLE city (id integer PRIMARY KEY)")
    sql("INSERT INTO city VALUES (1)")
    sql("CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city)")
    sql("DROP ROLE IF EXISTS loader; CREATE ROLE loader LOGIN PASSWORD 'loader'")
    sql("GRANT SELECT, INSERT, UPDATE ON t TO loader; GRANT USAGE ON SCHEMA public TO loader")
    target = table(database.replace("postgres:correct-horse", "loader:loader"), "t", key="id")
    refused = target.write(frame_of([{"id": n, "city": 9 if n in (3, 70) else 1} for n in range(99)]), label="a")
    target.close()
    assert places(refused) == [3, 70]
    assert "Key (city)=(9) is not present" in refused[0].error
    sql("DROP OWNED BY loader; DROP ROLE loader")


def test_check_on_columns_missing_in_the_rows_is_applied(sql, sink):
    checks = "CHECK (a >= least), CHECK (t IS NOT NULL)"
    sql(f"CREATE TABLE t (id integer PRIMARY KEY, a integer, least integer DEFAULT 3, {checks})")
    refused = sink().write(frame_of([{"id": n, "a": n} for n in range(6)]), label="a")
    assert places(refused) == [0, 1, 2]


def test_postgresql_types_are_written(sql, sink):
    sql("CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    sql(
        """CREATE TABLE t (id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, m mood, p positive, tags text[],
                           grid integer[], note varchar(3), c char(2) COLLATE "C")"""
    )
    fine = {
        "id": 1,
        "m": "sad",
        "p": 1,
        "tags": ["a,b", 'c"d', "NULL"],
        "grid": [[1, 2], [3, 4]],
        "note": "abc",
        "c": "x",
    }
    faults = [{}, {"m": "cross"}, {"p": -1}, {"note": "abcd"}, {"grid": [[1], [2]]}]
    records = [{**fine, **fault, "id": n} for n, fault in enumerate(faults)]
    for rows in (frame_of(records), rows_of(records)):
        assert places(sink().write(rows, label="a")) == [1, 2, 3]
        assert sql("SELECT tags, grid, m, note FROM t WHERE id = 0") == [
            (["a,b", 'c"d', "NULL"], [[1, 2], [3, 4]], "sad", "abc")
        ]
    categories = (
        pl.Series("m", ["glad", "sad"], dtype=pl.Categorical),
        pl.Series("note", ["a", "b"], dtype=pl.Enum(["a", "b"])),
    )
    frame = pl.DataFrame([pl.Series("id", [10, 11]), *categories])
    assert sink().write(Outgoing.of_frame(frame, range(2)), label="b") == []


def test_whole_floats_fit_an_integer_column_and_others_do_not(sql, sink):
    sql("CREATE TABLE t (id bigint PRIMARY KEY, n integer)")
    numbers = [5.0, 5.5, None, float("nan"), 1e12, -0.0]
    records = [{"id": float(at), "n": number} for at, number in enumerate(numbers)]
    for rows in (frame_of(records), rows_of(records)):
        assert places(sink().write(rows, label="a")) == [1, 3, 4]
        assert sql("SELECT n FROM t ORDER BY id") == [(5,), (None,), (0,)]


def test_old_datetimes_have_their_seconds_in_every_zone(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, z timestamptz)")
    moment = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
    zoned = pl.Series("z", [moment]).dt.convert_time_zone("Asia/Kolkata")  # 5:21:10 ahead, in those days
    sink().write(Outgoing.of_frame(pl.DataFrame([pl.Series("id", [1]), zoned]), [0]), label="a")
    assert sql("SELECT z FROM t")[0][0].astimezone(dt.UTC) == moment


def test_partitioned_table_is_written(sql, sink):
    sql("CREATE TABLE t (id integer, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    sql("CREATE TABLE t_july PARTITION OF t FOR VALUES FROM ('2026-07-01') TO ('2026-08-01')")
    target = sink(key=["id", "day"])
    days = [dt.date(2026, 7, 1), dt.date(2026, 9, 1), dt.date(2026, 7, 31)]
    rows = frame_of([{"id": n, "day": day} for n, day in enumerate(days)])
    for _ in range(2):
        refused = target.write(rows, label="a")
        assert places(refused) == [1]
        assert "no partition" in refused[0].error
    assert sql("SELECT count(*) FROM t") == [(2,)]


def test_table_in_a_missing_schema_is_reported(sink):
    with pytest.raises(SinkMismatch, match=r'has no schema silver; make it: CREATE SCHEMA "silver"'):
        sink("silver.t", create=True).check(("id",))


@pytest.mark.parametrize(
    ("context", "line", "column"),
    [
        ('COPY redrive_load_1f, line 17, column fee: "N/A"', 17, "fee"),
        ('COPY redrive_load_1f, line 17, column other fee: "column fee: 9"', 17, "other fee"),
        ('COPY redrive_load_1f, line 4: "1\\t2"', 4, None),
        ("COPY redrive_load_1f, line 3001", 3001, None),
        ("COPY redrive_load_1f, Zeile 8, Spalte fee: »N/A«", 8, "fee"),
        ('redrive_load_1fのCOPY、行 12、列 fee: "N/A"', 12, "fee"),
        ('JSON data, line 1: {a\nCOPY redrive_load_1f, line 4, column fee: "{a"', 4, "fee"),
        ("PL/pgSQL function f(integer) line 3 at RAISE\nCOPY redrive_load_1f, line 9", 9, None),
        ("SQL statement", None, None),
        (None, None, None),
    ],
)
def test_line_of_a_fault_is_read_in_any_language(context, line, column):
    expected = None if line is None else (line, column)
    assert faulty_line(context, "redrive_load_1f", ("id", "fee", "other fee")) == expected


# ── two at once ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_writers_of_the_same_keys_in_other_orders_all_succeed(sql, database):
    sql("CREATE TABLE t (id integer PRIMARY KEY, who integer, n numeric)")
    failures = []

    def write(who):
        target, order = table(database, "t", key="id", patience=60), list(range(400))
        try:
            for turn in range(6):
                random.Random(10 * who + turn).shuffle(order)
                rows = rows_of([{"id": n, "who": who, "n": Decimal(turn)} for n in order])
                failures.extend(target.write(rows, label=f"{who}/{turn}"))
        except Exception as error:
            failures.append(error)
        finally:
            target.close()

    writers = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert sql("SELECT count(*), max(n) FROM t") == [(400, 5)]


def test_missing_table_is_created_once_by_two_writers(sql, database):
    barrier, failures = threading.Barrier(3), []

    def write(who):
        target = table(database, "t", key="id", create=True)
        barrier.wait(60)
        try:
            target.write(rows_of([{"id": 10 * who + n, "a": "x"} for n in range(5)]), label="a")
        except Exception as error:
            failures.append(error)
        finally:
            target.close()

    writers = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert sql("SELECT count(*) FROM t") == [(15,)]


# ── one transaction with the store ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(new_store):
    with new_store("postgresql") as url, redrive.connect(url) as opened:
        opened.url = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id integer PRIMARY KEY, a text NOT NULL)")
        yield opened


def test_rows_and_letters_are_committed_together_or_not_at_all(store):
    target = table(store.url, "t", key="id")
    assert target.lives_in(store.database)

    def work(connection, *, fails):
        refused = target.write_within(
            connection, rows_of([{"id": 1, "a": "x"}, {"id": 2, "a": None}, {"id": 3, "a": "y"}])
        )
        assert places(refused) == [1]
        seen = connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one()  # the transaction is as good as before
        if fails:
            raise KeyError("the caller changed his mind")
        return seen

    with pytest.raises(KeyError):
        store.database.write(lambda connection: work(connection, fails=True))
    count = store.database.read(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one())
    assert count == 0
    assert store.database.write(lambda connection: work(connection, fails=False)) == 2
    target.close()


def test_other_database_user_server_or_store_is_another_place(store, tmp_path, database):
    here = store.url
    elsewhere = [
        database,
        here.replace("postgres:correct-horse", "somebody:correct-horse"),
        here.replace("127.0.0.1", "localhost"),
        here + "?options=-csearch_path%3Dother",
    ]
    assert table(here.replace("correct-horse", "another"), "t", key="id").lives_in(store.database)
    assert not any(table(url, "t", key="id").lives_in(store.database) for url in elsewhere)
    with redrive.connect(tmp_path / "s.db") as small:
        assert not table(here, "t", key="id").lives_in(small.database)


# ── a server that is not there ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (
            ("correct-horse", "battery-staple"),
            Kind.AUTH,
            "password authentication failed.*check the user and the password",
        ),
        (("/postgres_tables", "/nowhere"), Kind.PERMANENT, "nowhere.* does not exist"),
        (("127.0.0.1", "127.0.0.2"), Kind.TRANSIENT, "check that the server runs"),
    ],
    ids=["password", "database", "server"],
)
def test_unusable_server_is_one_sentence(database, change, kind, says):
    target = table(database.replace(*change), "t", key="id", patience=0.2)
    rows = rows_of([{"id": 1}])
    for use in (lambda: target.check(("id",)), lambda: target.write(rows, label="a"), lambda: target.rehearse(rows)):
        with pytest.raises(StoreError, match=says) as told:
            use()
        assert told.value.kind is kind
        assert "\n" not in str(told.value)
        assert "correct-horse" not in str(told.value)
        assert "battery-staple" not in str(told.value)


def test_missing_permission_is_one_sentence(sql, database):
    sql("CREATE TABLE t (id integer PRIMARY KEY)")
    sql("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN PASSWORD 'guest'; GRANT USAGE ON SCHEMA public TO guest")
    target = table(database.replace("postgres:correct-horse", "guest:guest"), "t", key="id")
    with pytest.raises(StoreError, match="permission denied for table t") as told:
        target.write(rows_of([{"id": 1}]), label="a")
    assert told.value.kind is Kind.PERMANENT
    target.close()
    sql("DROP OWNED BY guest; DROP ROLE guest")


@pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_server_restart_between_or_within_writes_is_waited_for(mortal_postgres, how):
    name = f"restarts_{next(_serial)}"
    with psycopg.connect(mortal_postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    url = mortal_postgres.url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id integer PRIMARY KEY, a text CHECK (a <> 'bad'))")
    target = table(url, "t", key="id", patience=60)

    def batch(start):
        return frame_of([{"id": n, "a": "bad" if n % 50 == 7 else "good"} for n in range(start, start + 100)])

    assert places(target.write(batch(0), label="a")) == [7, 57]
    getattr(mortal_postgres, how)()
    returning = threading.Thread(target=lambda: (time.sleep(0.3), mortal_postgres.start()))
    returning.start()
    assert places(target.write(batch(100), label="b")) == [7, 57]
    returning.join()
    struck = []

    class Struck(Outgoing):
        """Rows that are read when the transaction has begun, and something happens then."""

        @property
        def tuples(self):
            if not struck:
                struck.append(how)
                getattr(mortal_postgres, how)()
                mortal_postgres.start()
            return super().tuples

    rows = batch(200)
    assert places(target.write(Struck(rows.columns, rows.origin, tuples=rows.tuples), label="c")) == [7, 57]
    assert struck
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone() == (294, 294)
    target.close()
    gc.collect()  # SQLAlchemy does not close the cursor of a connection that broke


# ── one value, one text ───────────────────────────────────────────────────────────────────────────────────────────────


def test_integer_beyond_64_bits_rejects_no_other_row(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, n numeric)")
    assert list(sink().write(rows_of([{"id": 1, "n": 1}, {"id": 2, "n": 2**64 - 1}]), label="a")) == []
    assert sql("SELECT n FROM t ORDER BY id") == [(1,), (2**64 - 1,)]


@pytest.mark.parametrize(
    "values",
    [
        [dt.datetime(2026, 7, 1, 12), dt.datetime(2026, 7, 1, 12, 0, 0, 1)],
        [dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)],
        [dt.date(2026, 7, 1)],
        [dt.time(1, 2), dt.time(1, 2, 3, 4)],
        [dt.timedelta(days=1, seconds=5), dt.timedelta(microseconds=-1)],
        [1.0, 1e-7, 1e22, float("nan"), float("inf")],
        [Decimal("1.50"), Decimal("0.00")],
        [True, False],
        [{"a": dt.date(2026, 7, 1)}],
        [uuid.UUID(int=5)],
    ],
    ids=lambda values: type(values[0]).__name__,
)
@pytest.mark.parametrize("kind", ["text", "jsonb"])
def test_row_is_the_same_in_frame_tuple_and_mixed_types(sql, sink, kind, values):
    if kind == "jsonb" and float in map(type, values):
        values = values[:3]
    sql(f"CREATE TABLE t (id {kind} PRIMARY KEY, more text)")
    records = [{"id": value, "more": "x"} for value in values]
    mixed = rows_of([*records, {"id": '"z"' if kind == "jsonb" else "z", "more": 1}])
    ways = [rows_of(records), mixed] + ([] if type(values[0]) is uuid.UUID else [frame_of(records)])
    for rows in ways:
        assert list(sink().write(rows, label="a")) == []
    assert sql("SELECT count(*) FROM t") == [(len(values) + 1,)]


def test_nanoseconds_that_a_column_would_lose_are_rejected(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, f double precision, at timestamp, clock time)")
    moments, clocks = [1_577_881_815_123_456_000, 1_577_881_815_123_456_789], [86_399_999_999_000, 86_399_999_999_999]
    frame = pl.DataFrame(
        {"id": [1, 2, 3], "f": [0.1] * 3, "at": [*moments, moments[0]], "clock": [clocks[0], *clocks]},
        schema_overrides={"f": pl.Float32},
    ).with_columns(pl.col("at").cast(pl.Datetime("ns")), pl.col("clock").cast(pl.Time))
    refused = sink().write(Outgoing.of_frame(frame, range(3)), label="a")
    assert [(one.place, str(one.error).partition(":")[0]) for one in refused] == [(1, "at"), (2, "clock")]
    assert sql("SELECT * FROM t") == [frame.row(0)]


def test_years_beyond_python_are_written_for_the_server(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, day date, at timestamp, moment timestamptz, said text)")
    days = pl.Series([0, 10_000_000, -800_000], dtype=pl.Int32).cast(pl.Date)
    at = days.cast(pl.Datetime("us"))
    frame = pl.DataFrame({"id": [0, 1, 2], "day": days, "at": at, "moment": at.dt.replace_time_zone("UTC")})
    assert list(sink().write(Outgoing.of_frame(frame, range(3)), label="a")) == []
    assert sql("SELECT day::text, at::text FROM t WHERE at = moment AT TIME ZONE 'UTC' ORDER BY id") == [
        ("1970-01-01", "1970-01-01 00:00:00"),
        ("29349-01-26", "29349-01-26 00:00:00"),
        ("0222-09-04 BC", "0222-09-04 00:00:00 BC"),
    ]
    frame = frame.select("id", said="day")
    assert [one.place for one in sink().write(Outgoing.of_frame(frame, range(3)), label="b")] == [1, 2]


# ── other tables and other users ──────────────────────────────────────────────────────────────────────────────────────


def test_deferred_foreign_key_is_checked_row_by_row(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, code integer UNIQUE)")
    sql("CREATE TABLE other (code integer REFERENCES t (code) DEFERRABLE INITIALLY DEFERRED)")
    sql("INSERT INTO t VALUES (1, 10), (2, 20); INSERT INTO other VALUES (10)")
    refused = sink().write(rows_of([{"id": n, "code": 10 * n + 1} for n in (1, 2, 3)]), label="a")
    assert [one.place for one in refused] == [0]
    assert sql("SELECT * FROM t ORDER BY id") == [(1, 10), (2, 21), (3, 31)]


def test_rows_hidden_by_a_policy_can_be_referenced(sql, database):
    sql("CREATE TABLE city (id integer PRIMARY KEY); INSERT INTO city VALUES (1), (2)")
    sql("CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city)")
    sql("ALTER TABLE city ENABLE ROW LEVEL SECURITY; CREATE ROLE narrow LOGIN PASSWORD 'gate'")
    sql("GRANT USAGE ON SCHEMA public TO narrow; GRANT ALL ON city, t TO narrow")
    target = table(make_url(database).set(username="narrow", password="gate"), "t", key="id")
    refused = target.write(rows_of([{"id": n, "city": city} for n, city in enumerate((1, 2, 9))]), label="a")
    target.close()
    assert [one.place for one in refused] == [2]
    assert sql("SELECT * FROM t ORDER BY id") == [(0, 1), (1, 2)]
    sql("DROP OWNED BY narrow; DROP ROLE narrow")


def test_pooler_may_change_the_server_process_between_batches(sql, sink, monkeypatch):
    sql("CREATE TABLE t (id integer PRIMARY KEY, n integer)")
    target, real = sink(patience=1), psycopg.Connection.commit

    def commit(self):
        real(self)
        self.pgconn.exec_(b"DEALLOCATE ALL")  # another process of the server knows as little

    monkeypatch.setattr(psycopg.Connection, "commit", commit)
    for n in range(12):
        assert list(target.write(rows_of([{"id": 1, "n": n}, {"id": 2, "n": n}]), label="a")) == []
    assert sql("SELECT n FROM t") == [(11,), (11,)]


# ── many bad rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

WRONG = [{"n": "x"}, {"n": "-1"}, {"n": None}, {"v": "too long"}, {"day": "someday"}]


def many_faults(count):
    """Rows of which most break one rule or another."""
    good = {"n": "1", "v": "ok", "day": "2026-07-01", "j": '{"a": 1}'}
    return [{"id": n, **good, **(WRONG[n % 7] if n % 7 < len(WRONG) else {})} for n in range(count)]


def strict_table(sql):
    sql(
        """CREATE TABLE t (id integer PRIMARY KEY, n integer NOT NULL CONSTRAINT "not 100% below" CHECK (n > 0),
                           v varchar(5), day date, j jsonb)"""
    )


@pytest.mark.parametrize("made", [rows_of, frame_of])
def test_mostly_bad_rows_are_queried_at_once(sql, sink, statements, made):
    strict_table(sql)
    records, target = many_faults(7_000), sink()
    target.check(tuple(records[0]))
    del statements[:]
    refused = target.write(made(records), label="a")
    assert [one.place for one in refused] == [n for n in range(7_000) if n % 7 < 5]
    assert len(statements) < 400
    assert [str(one.error) for one in refused[-5:]] == [str(one.error) for one in refused[:5]]
    assert sql("SELECT count(*), sum(n) FROM t") == [(2_000, 2_000)]


def test_rows_that_cannot_be_queried_are_found_one_by_one(sql, sink):
    strict_table(sql)
    records = many_faults(210)
    records[200]["v"] = "a\0b"  # no text of PostgreSQL's can hold it
    refused = sink().write(frame_of(records), label="a")
    assert [one.place for one in refused] == [n for n in range(210) if n % 7 < 5]
    assert sql("SELECT count(*) FROM t") == [(60,)]


def test_columns_equal_in_63_bytes_are_rejected(sink):
    names = ["é" * 31 + "ab", "é" * 31 + "ac"]
    with pytest.raises(SinkMismatch, match="keeps 63 bytes of a column's name") as refused:
        sink("t", create=True).write(rows_of([{"id": 1, **dict.fromkeys(names, 1)}]), label="a")
    assert all(repr(name) in str(refused.value) for name in names)


class TestRowErrors:
    """Errors whose SQLSTATE does not show whether a row is at fault or the statement."""

    @pytest.fixture
    def raising(self, sql):
        """A table whose trigger raises a code for the rows of a condition."""

        def make(code, condition="NEW.v = 'bad'", when="INSERT OR UPDATE"):
            sql(
                "CREATE TABLE t (id integer PRIMARY KEY, v text);"
                f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF {condition} THEN "
                f"RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'refused'; END IF; "
                "RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END; END$$;"
                f"CREATE TRIGGER refuse BEFORE {when} ON t FOR EACH ROW EXECUTE FUNCTION refuse()"
            )

        return make

    @pytest.mark.parametrize(
        ("kind", "good", "bad"),
        [("tsquery", "a & b", "a &"), ("jsonpath", "$.a", "$.a["), ("regclass", "pg_class", "no such")],
    )
    @pytest.mark.parametrize("key", ["id", None])
    def test_value_that_a_type_does_not_accept_is_rejected(self, sink, sql, kind, good, bad, key):
        sql(f"CREATE TABLE t (id integer PRIMARY KEY, v {kind})")
        rows = [{"id": number, "v": bad if number in (3, 77) else good} for number in range(100)]
        writes = sink(key=key, append=True) if key is None else sink()
        assert [one.place for one in writes.write(rows_of(rows), label="run/0")] == [3, 77]
        assert sql("SELECT count(*) FROM t") == [(98,)]

    def test_batch_of_such_values_only_is_rejected(self, sink, sql):
        sql("CREATE TABLE t (id integer PRIMARY KEY, v tsquery)")
        assert len(sink().write(rows_of([{"id": 1, "v": "a &"}]), label="run/0")) == 1

    @pytest.mark.parametrize("code", ["45000", "MY001", "P0002", "42501", "0A000", "55000", "42601"])
    def test_row_with_a_raising_trigger_is_rejected(self, sink, sql, raising, code):
        raising(code)
        rows = [{"id": number, "v": "bad" if number % 10 == 0 else "good"} for number in range(50)]
        refused = sink().write(rows_of(rows), label="run/0")
        assert [(one.place, str(one.error)) for one in refused] == [(place, "refused") for place in range(0, 50, 10)]
        assert sql("SELECT count(*) FROM t") == [(45,)]

    @pytest.mark.parametrize("code", ["42501", "0A000"])
    def test_error_of_every_row_ends_the_write(self, sink, raising, code, statements):
        raising(code, "true")
        statements.clear()
        with pytest.raises(StoreError, match="refused"):
            sink().write(rows_of([{"id": number, "v": "good"} for number in range(1_000)]), label="run/0")
        assert sum("INSERT INTO" in statement for statement in statements) < 40

    @pytest.mark.parametrize("code", ["45000", "P0002"])
    def test_triggers_own_error_code_ends_the_write(self, sink, raising, code):
        raising(code, "true")
        assert len(sink().write(rows_of([{"id": 1, "v": "good"}]), label="run/0")) == 1

    @pytest.mark.parametrize("code", ["45000", "42501"])
    def test_deletion_with_a_raising_trigger_is_rejected(self, sink, sql, raising, code):
        raising(code, "OLD.v = 'bad'", when="DELETE")
        sql("INSERT INTO t VALUES (1, 'good'), (2, 'bad'), (3, 'good')")
        rows = rows_of([{"id": number, "v": "x", "gone": True} for number in (1, 2, 3)])
        assert [one.place for one in sink(delete_when="gone").write(rows, label="run/0")] == [1]
        assert sql("SELECT id FROM t") == [(2,)]

    def test_deletion_that_is_never_allowed_ends_the_write(self, sink, sql, raising):
        raising("42501", "true", when="DELETE")
        sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        rows = rows_of([{"id": number, "v": "x", "gone": True} for number in (1, 2)])
        with pytest.raises(StoreError, match="refused"):
            sink(delete_when="gone").write(rows, label="run/0")


class TestTexts:
    """Texts as they are judged and sent."""

    @pytest.mark.parametrize("rows", [rows_of, frame_of])
    def test_number_before_a_line_break_is_no_interval(self, sink, sql, rows):
        sql("CREATE TABLE t (id integer PRIMARY KEY, v interval)")
        texts = ["5\n", "5\t", "5\r\n", "1 day\n"]
        refused = sink().write(rows([{"id": at, "v": text} for at, text in enumerate(texts)]), label="run/0")
        assert [one.place for one in refused] == [0, 1, 2]

    @pytest.mark.parametrize("kind", ["xml", "tsvector", "integer", "xml[]"])
    @pytest.mark.parametrize("rows", [rows_of, frame_of])
    def test_bytes_are_rejected_by_all_but_bytea(self, sink, sql, kind, rows):
        sql(f"CREATE TABLE t (id integer PRIMARY KEY, v {kind})")
        value = [b"<a/>"] if kind.endswith("[]") else b"<a/>"
        [refused] = sink().write(rows([{"id": 1, "v": value}]), label="run/0")
        assert "the column takes no bytes" in str(refused.error)
