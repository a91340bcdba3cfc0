"""A run is rejected if the options that decide what is read or written differ from those of its checkpoint."""

import contextlib
import itertools
import json
import sqlite3
from pathlib import Path

import polars
import pytest

import redrive
from tests.support.table_places import place_of

WAYS = r"--restart.*--accept-changes"
ROWS = [{"id": n, "at": n, "code": f"c{n}", "deleted": 0} for n in range(6)]


def table(path, **options):
    options = {"key": "id", **options}
    return redrive.rows.table(f"sqlite:///{path}", "t", create=True, **options)


def contents(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM t ORDER BY 1").fetchall()


def stopped_once(*, at):
    """Return a validator that meets a bug at the record of this number, once."""
    numbers = itertools.count()

    def validate(record):
        if next(numbers) == at:
            raise AttributeError("bug")
        return record

    return validate


class Scene:
    """Pipelines of one name, store and sink, over files of one content."""

    def __init__(self, directory):
        self.sink = directory / "sink"
        self.store = directory / "store.db"
        self.csv = directory / "in.csv"
        self.csv.write_text("id,at\n" + "".join(f"{n},é{n}\n" for n in range(6)))
        self.parquet = directory / "in.parquet"
        polars.DataFrame(ROWS).write_parquet(self.parquet)

    def pipeline(self, **options):
        made = {"source": redrive.rows.records(ROWS), "sink": table(self.sink), "batch": 2, "store": self.store}
        return redrive.Pipeline("p", **(made | options))

    def stop(self, **options):
        with pytest.raises(redrive.RunStopped, match="bug"):
            self.pipeline(**options, validate=stopped_once(at=3)).run()

    def refused(self, match, **options):
        with pytest.raises(redrive.PipelineError, match=f"{match}.*{WAYS}"):
            self.pipeline(**options).run()


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


CSV = {
    "delimiter": (None, ";"),
    "quote": ('"', None),
    "header": (True, False),
    "columns": (["a", "b"], ["b", "a"]),
    "encoding": ("cp1252", "utf-8"),
    "null": (["", "N/A"], [""]),
    "skip": (0, 1),
}
SINKS = {
    "key": ("id", "code"),
    "on_conflict": ("ignore", "update"),
    "newer": ("at", None),
    "delete_when": ("deleted", {"deleted": [1, 2]}),
}


class TestUnfinishedRun:
    @pytest.mark.parametrize("name", CSV)
    def test_is_not_resumed_with_other_csv_options(self, scene, name):
        before, after = CSV[name]
        more = {"header": False} if name == "columns" else {}
        sink = table(scene.sink, key="a") if name == "columns" else table(scene.sink)
        sources = [redrive.rows.csv(scene.csv, **{name: option}, **more) for option in (before, after)]
        scene.stop(source=sources[0], sink=sink)
        scene.refused(f"its {name} was .*, and here it is ", source=sources[1], sink=sink)
        report = scene.pipeline(source=sources[0], sink=sink).run()
        assert (report.status, report.resumed) == ("complete", True)

    @pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
    def test_is_not_resumed_without_the_columns_of_directories(self, scene, tmp_path, kind):
        path = tmp_path / "day=1" / f"in.{kind}"
        path.parent.mkdir()
        if kind == "csv":
            polars.DataFrame(ROWS).write_csv(path)
        else:
            getattr(polars.DataFrame(ROWS), f"write_{kind}")(path)
        read = getattr(redrive.rows, kind)
        scene.stop(source=read(f"{tmp_path}/*/in.{kind}"))
        scene.refused(r'its partitions was \["day"\], and here it is \[\]', source=read(f"{tmp_path}/day=1/*.{kind}"))
        (tmp_path / "day=2").mkdir()
        (tmp_path / "day=2" / f"in.{kind}").write_bytes(path.read_bytes())
        assert scene.pipeline(source=read(f"{tmp_path}/*/in.{kind}")).run().read == 12

    def test_is_not_resumed_with_other_columns_of_a_parquet_file(self, scene):
        read = [redrive.rows.parquet(scene.parquet, columns=names) for names in (["at", "id"], ["id", "at", "code"])]
        scene.stop(source=read[0])
        scene.refused(r'its columns was \["at","id"\], and here', source=read[1])
        assert scene.pipeline(source=redrive.rows.parquet(scene.parquet, columns=["id", "at"])).run().resumed

    def test_is_not_resumed_with_another_list_of_pages(self, scene):
        def fetch(page):
            return {"new": ROWS[2 * page - 2 : 2 * page], "old": []}

        def pages(items, **options):
            service = redrive.Service("api")
            return redrive.rows.pages(service, fetch, items=items, identity="today", **options)

        scene.stop(source=pages("new"))
        scene.refused('its items was "new", and here it is "old"', source=pages("old"))
        report = scene.pipeline(source=pages("new", in_flight=2, bad_page="quarantine", limit=2)).run()
        assert (report.resumed, report.read) == (True, 4)

    @pytest.mark.parametrize("name", SINKS)
    def test_is_not_resumed_with_other_sink_options(self, scene, name):
        before, after = SINKS[name]
        scene.stop(sink=table(scene.sink, **{name: before}))
        scene.refused(f"its {name} was", sink=table(scene.sink, **{name: after}))
        assert scene.pipeline(sink=table(scene.sink, **{name: before})).run().resumed

    def test_is_not_resumed_with_another_key_of_a_dataset(self, scene):
        datasets = [redrive.rows.parquet_dataset(scene.sink, key=key) for key in ("id", "code")]
        scene.stop(sink=datasets[0])
        scene.refused("its key was", sink=datasets[1])

    @pytest.mark.parametrize("before", ["last", "first", "quarantine"])
    def test_is_not_resumed_with_another_rule_for_duplicates(self, scene, before):
        after = "first" if before == "last" else "last"
        scene.stop(on_duplicate=before)
        scene.refused(f'its on_duplicate was "{before}", and here it is "{after}"', on_duplicate=after)
        assert scene.pipeline(on_duplicate=before).run().resumed

    def test_is_resumed_with_reordered_deletion_values(self, scene):
        scene.stop(sink=table(scene.sink, delete_when={"deleted": {1, 2, "x"}}))
        assert scene.pipeline(sink=table(scene.sink, delete_when={"deleted": ["x", 2, 1]})).run().resumed

    def test_is_resumed_with_another_validator_gate_or_batch(self, scene):
        scene.stop()
        options = {
            "transform": lambda record: record,
            "batch": 3,
            "gate": redrive.Gate(abort=0.9),
            "patience": 1,
            "key": "code",
        }
        assert scene.pipeline(**options).run().resumed

    def test_is_resumed_with_limits_that_only_make_letters(self, scene):
        scene.stop(source=redrive.rows.csv(scene.csv))
        assert scene.pipeline(source=redrive.rows.csv(scene.csv, max_record_bytes=1_000)).run().resumed

    def test_is_resumed_when_the_change_is_accepted(self, scene):
        scene.stop(source=redrive.rows.csv(scene.csv, encoding="cp1252"))
        changed = scene.pipeline(source=redrive.rows.csv(scene.csv))
        report = changed.run(accept_changes=True)
        assert (report.status, report.resumed, report.read) == ("complete", True, 6)
        assert [value for _, value in contents(scene.sink)] == ["Ã©0", "Ã©1", *(f"é{n}" for n in range(2, 6))]

    def test_keeps_the_accepted_options(self, scene):
        scene.stop(on_duplicate="last")
        with pytest.raises(redrive.RunStopped, match="deadline"):
            scene.pipeline(on_duplicate="first").run(accept_changes=True, deadline=1e-9)
        scene.refused('its on_duplicate was "first"', on_duplicate="last")
        assert scene.pipeline(on_duplicate="first").run().resumed

    def test_is_replaced_by_a_restart(self, scene):
        scene.stop(source=redrive.rows.csv(scene.csv, encoding="cp1252"))
        scene.pipeline(source=redrive.rows.csv(scene.csv)).run(restart=True)
        assert contents(scene.sink) == [(str(n), f"é{n}") for n in range(6)]

    def test_is_resumed_from_older_version_and_binds_options(self, scene):
        scene.stop()
        with contextlib.closing(sqlite3.connect(scene.store)) as connection, connection:
            connection.execute("UPDATE checkpoints SET identity = json_remove(identity, '$.options')")
        with pytest.raises(redrive.RunStopped, match="deadline"):
            scene.pipeline(on_duplicate="first").run(deadline=1e-9)
        scene.refused("its on_duplicate was", on_duplicate="last")

    def test_is_listed_unchanged_after_a_rejected_start(self, scene):
        scene.stop()
        scene.refused("its on_duplicate was", on_duplicate="first")
        report = scene.pipeline().run()
        assert (report.status, report.read, report.written) == ("complete", 6, 6)


class TestCompleteRun:
    def test_does_not_bind_the_next_run(self, scene):
        scene.pipeline(source=redrive.rows.csv(scene.csv), on_duplicate="last").run()
        report = scene.pipeline(source=redrive.rows.csv(scene.csv, encoding="cp1252"), on_duplicate="first").run()
        assert (report.status, report.read, report.resumed) == ("complete", 6, False)


@pytest.fixture(params=["postgresql", "sqlite"])
def orders(request, new_store, tmp_path):
    """A scene of a query, on each database that is read and store that keeps its checkpoint."""
    with place_of(request.param, new_store, tmp_path) as (store, url, execute):
        execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER, region TEXT)")
        for n in range(6):
            execute(f"INSERT INTO orders VALUES ({n}, {n}, '{'EU' if n < 3 else 'US'}')")
        yield Orders(store, url, tmp_path / "sink")


class Orders:
    ALL = "SELECT * FROM orders"
    BY_REGION = "SELECT * FROM orders WHERE region = :region"

    def __init__(self, store, url, sink):
        self.store = store
        self.url = url
        self.sink = sink

    def pipeline(self, sql=BY_REGION, *, validate=None, on_duplicate="last", **options):
        if sql == self.BY_REGION:
            options = {"parameters": {"region": "US"}, **options}
        source = redrive.rows.query(self.url, sql, watermark="at", key="id", **options)
        return redrive.Pipeline(
            "p",
            source=source,
            sink=table(self.sink),
            validate=validate,
            on_duplicate=on_duplicate,
            batch=2,
            store=self.store,
        )

    def refused(self, match, *args, **options):
        with pytest.raises(redrive.PipelineError, match=f"{match}.*{WAYS}") as refused:
            self.pipeline(*args, **options).run()
        return str(refused.value)

    def ids(self):
        return [row[0] for row in contents(self.sink)]


EU = {"parameters": {"region": "EU"}}


class TestWatermark:
    def test_is_not_used_with_other_parameters(self, orders):
        assert orders.pipeline().run().read == 3
        message = orders.refused(r"its parameters have changed \(region\)", **EU)
        assert 'on_change="continue"' in message
        assert "EU" not in message
        assert "US" not in message

    def test_is_not_used_with_other_sql(self, orders):
        orders.pipeline().run()
        orders.refused("its SQL has changed", Orders.ALL)
        assert orders.pipeline().run().read == 0

    def test_is_not_used_with_other_quoted_text(self, orders):
        sql = "SELECT * FROM orders WHERE region <> '{}'"
        orders.pipeline(sql.format("a b")).run()
        orders.refused("its SQL has changed", sql.format("a  b"))

    def test_is_not_used_with_a_condition_that_was_a_comment(self, orders):
        orders.pipeline("SELECT * FROM orders -- \n WHERE id > 2").run()
        orders.refused("its SQL has changed", "SELECT * FROM orders -- WHERE id > 2")

    def test_is_used_with_reformatted_sql(self, orders):
        orders.pipeline().run()
        report = orders.pipeline("SELECT *\n  FROM orders\n WHERE region = :region ;\n", parameters={"region": "US"})
        assert report.run().read == 0

    def test_is_used_with_other_sink_options(self, orders):
        orders.pipeline().run()
        assert orders.pipeline(on_duplicate="first").run().read == 0

    def test_is_kept_where_the_query_may_change(self, orders):
        orders.pipeline(parameters={"region": "EU"}).run()
        assert orders.pipeline(on_change="continue").run().read == 3
        assert orders.pipeline("SELECT * FROM orders WHERE at < 9", on_change="continue").run().read == 0
        orders.refused("its SQL has changed", Orders.BY_REGION)

    def test_is_kept_once_when_the_change_is_accepted(self, orders):
        orders.pipeline(parameters={"region": "EU"}).run()
        assert orders.pipeline().run(accept_changes=True).read == 3
        assert orders.pipeline().run().read == 0
        assert orders.ids() == [*range(6)]

    def test_is_left_by_a_restart(self, orders):
        orders.pipeline().run()
        assert orders.pipeline(Orders.ALL).run(restart=True).read == 6

    def test_of_an_unfinished_run_is_not_used_with_other_parameters(self, orders):
        with pytest.raises(redrive.RunStopped, match="bug"):
            orders.pipeline(validate=stopped_once(at=2)).run()
        orders.refused(r"its parameters have changed \(region\)", **EU)
        assert orders.pipeline().run().resumed
        assert orders.ids() == [3, 4, 5]

    def test_rejects_an_unknown_choice(self):
        with pytest.raises(ValueError, match='"refuse" or "continue"'):
            redrive.rows.query("sqlite:///x.db", "SELECT 1", watermark="a", key="b", on_change="ignore")


class TestSecret:
    def test_of_the_query_is_not_in_the_store(self, scene, tmp_path):
        with contextlib.closing(sqlite3.connect(tmp_path / "in.db")) as connection, connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO t VALUES (1)")
        sql = "SELECT id FROM t WHERE :token <> 'in-the-sql'"
        url = f"sqlite:///{tmp_path / 'in.db'}"
        options = {"watermark": "id", "key": "id", "parameters": {"token": "hunter2-hunter2"}}
        assert scene.pipeline(source=redrive.rows.query(url, sql, **options)).run().read == 1
        stored = b"".join(path.read_bytes() for path in Path(tmp_path).glob("store.db*"))
        assert b"token" in stored
        assert b"hunter2" not in stored
        assert b"in-the-sql" not in stored
        with contextlib.closing(sqlite3.connect(scene.store)) as connection:
            (kept,) = connection.execute("SELECT identity FROM checkpoints").fetchone()
        assert json.loads(kept)["options"]["reading"].keys() == {"SQL", "parameters"}
