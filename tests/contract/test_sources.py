"""The contract of `Source` and `Reading` in redrive/rows/sources/source.py, tested on every source."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import duckdb
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import redrive
from redrive import rows
from redrive.rows.sources.source import Incremental, Source

ROWS = 57
BAD = (5, 6, 30)  # the places of what is no row, where a source can have such a thing in the midst
_serial = itertools.count()


@dataclass
class Case:
    """A source of the rows 0 to 56, as numbers in the column `id`.

    other   a source of the same kind that a checkpoint of the first is not good for
    empty   one without a row
    bad     how many pieces of it are no rows
    whole   how many rows it cannot part, as those of a page
    """

    make: Any
    other: Source
    empty: Source
    bad: int = 0
    columns: tuple[str, ...] | None = None
    whole: int = 1
    source: Source = field(init=False)

    def __post_init__(self):
        self.source = self.make()


def with_bad(good, bad):
    """Rows with what is none among them."""
    items = [good(number) for number in range(ROWS)]
    for place in BAD:
        items.insert(place, bad)
    return items


# ── the sources ───────────────────────────────────────────────────────────────────────────────────────────────────────


def a_list(tmp_path, request):
    items = with_bad(lambda number: {"id": number, "name": f"n{number}"}, ["no mapping"])
    return Case(lambda: rows.records(items, name="a"), rows.records(items, name="b"), rows.records([]), len(BAD))


def a_function(tmp_path, request):
    def items():
        yield from ({"id": number} for number in range(ROWS))

    return Case(lambda: rows.records(items), rows.records(items, name="b"), rows.records(lambda: iter(())))


def a_frame(tmp_path, request):
    def over(numbers, name="frame"):
        return rows.records(pl.DataFrame({"id": numbers, "name": [f"n{n}" for n in numbers]}), name=name)

    everything = list(range(ROWS))
    return Case(lambda: over(everything), over(everything, "other"), over([]), columns=("id", "name"))


def text_files(tmp_path, make, lines, header=b""):
    """One file, and one more with the rest."""
    for name, part in (("1", lines[:20]), ("2", lines[20:])):
        (tmp_path / f"in-{name}.txt").write_bytes(header + b"".join(line + b"\n" for line in part))
    (tmp_path / "other.txt").write_bytes(header + lines[1] + b"\n")
    (tmp_path / "empty.txt").write_bytes(header)
    other, empty = make(tmp_path / "other.txt"), make(tmp_path / "empty.txt")
    return Case(lambda: make(tmp_path / "in-*.txt"), other, empty, len(BAD))


def ndjson(tmp_path, request):
    lines = with_bad(lambda number: json.dumps({"id": number, "name": f"n{number}"}).encode(), b"{no JSON")
    return text_files(tmp_path, rows.ndjson, lines)


def csv(tmp_path, request):
    lines = with_bad(lambda number: b"%d,n%d" % (number, number), b"1,2,3")
    case = text_files(tmp_path, rows.csv, lines, header=b"id,name\n")
    case.columns = ("id", "name")
    return case


def packed(case, tmp_path):
    for path in tmp_path.glob("*.txt"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    return case


def ndjson_gz(tmp_path, request):
    return packed(ndjson(tmp_path, request), tmp_path)


def csv_gz(tmp_path, request):
    return packed(csv(tmp_path, request), tmp_path)


def parquet(tmp_path, request):
    def write(name, numbers):
        table = pa.table({"id": pa.array(numbers, pa.int64()), "name": [f"n{number}" for number in numbers]})
        pq.write_table(table, tmp_path / name, row_group_size=9, write_page_checksum=True)
        return rows.parquet(tmp_path / name)

    write("in-1.parquet", range(20))
    write("in-2.parquet", range(20, ROWS))
    other, empty = write("other.parquet", range(3)), write("empty.parquet", [])
    return Case(lambda: rows.parquet(tmp_path / "in-*.parquet"), other, empty, columns=("id", "name"))


def a_query(url, connect):
    with contextlib.closing(connect()) as connection:
        for name in ("orders", "other", "blank"):
            connection.execute(f"CREATE TABLE {name} (id integer, updated_at timestamp)")
        connection.execute(
            "INSERT INTO orders VALUES (NULL, '2026-07-01 12:01:00'), (NULL, '2026-07-01 12:02:00'), "
            + ", ".join(f"({number}, '2026-07-01 12:{number // 10:02}:00')" for number in range(ROWS))
        )
        connection.commit()

    def over(table):
        return rows.query(url, f"SELECT * FROM {table}", watermark="updated_at", key="id")

    return Case(lambda: over("orders"), over("other"), over("blank"), bad=2, columns=("id", "updated_at"))


def query_sqlite(tmp_path, request):
    path = tmp_path / "orders.db"
    return a_query(f"sqlite:///{path}", lambda: sqlite3.connect(path))


def query_duckdb(tmp_path, request):
    path = tmp_path / "orders.duckdb"
    return a_query(f"duckdb:///{path}", lambda: duckdb.connect(str(path)))


def query_postgresql(tmp_path, request):
    server, name = request.getfixturevalue("postgres_url"), f"source_{next(_serial)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = server.rpartition("/")[0] + f"/{name}"
    return a_query(url, lambda: psycopg.connect(url))


def pages(tmp_path, request):
    def fetch(page):
        return [{"id": number} for number in range(ROWS)][(page - 1) * 10 : page * 10]

    def over(name, fetch):
        return rows.pages(redrive.Service(name), fetch, size=10)

    return Case(lambda: over("shop", fetch), over("other", fetch), over("none", lambda page: []), whole=10)


SOURCES = [
    *(a_list, a_function, a_frame, ndjson, ndjson_gz, csv, csv_gz, parquet),
    *(query_sqlite, query_duckdb, query_postgresql, pages),
]


@pytest.fixture(params=SOURCES, ids=lambda make: make.__name__)
def case(request, tmp_path):
    return request.param(tmp_path, request)


@contextlib.contextmanager
def opened(source, position=None):
    """A reading, at a position that has been through a checkpoint."""
    identity = json.loads(json.dumps(source.identity()))
    reading = source.open(json.loads(json.dumps(position)), identity)
    try:
        yield reading
    finally:
        reading.close()


def read_all(source, position=None, most=(10,)):
    with opened(source, position) as reading:
        sizes = itertools.cycle(most)
        return list(iter(lambda: reading.read(next(sizes)), None))


def ids(batches):
    return [int(record["id"]) for batch in batches for record in batch.rows.records]


def bad(batches):
    return [(one.raw, str(one.error), one.position) for batch in batches for one in batch.unreadable]


# ── the promises ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("most", [1, 7, 1_000])
def test_every_row_comes_once_in_order_in_limited_batches(case, most):
    batches = read_all(case.source, most=[most])
    assert ids(batches) == list(range(ROWS))
    assert len(bad(batches)) == case.bad
    assert max(len(batch.rows) for batch in batches) <= max(most, case.whole)
    assert all(len(batch.rows) or batch.unreadable for batch in batches)


@pytest.mark.parametrize("sizes", [[50, 1, 13], [1, 2, 3, 100]])
def test_how_much_is_asked_for_may_change_at_any_time(case, sizes):
    steady, changing = read_all(case.source), read_all(case.source, most=sizes)
    assert ids(changing) == ids(steady)
    assert bad(changing) == bad(steady)


@pytest.mark.parametrize(("most", "afterwards"), [(7, 7), (1, 20), (1_000, 3)])
def test_reading_from_a_batch_end_returns_the_rest(case, most, afterwards):
    whole = read_all(case.source, most=[most])
    for place, batch in enumerate(whole):
        again = read_all(case.source, batch.next, most=[afterwards])
        assert ids(again) == ids(whole[place + 1 :])
        assert bad(again) == bad(whole[place + 1 :])


def test_new_source_object_resumes_from_a_checkpoint(case):
    first, *rest = read_all(case.source)
    later = case.make()
    assert later.difference(json.loads(json.dumps(case.source.identity()))) is None
    assert ids(read_all(later, first.next)) == ids(rest)


def test_row_has_the_same_position_however_it_is_read(case):
    def places(batches):
        return [(batch.source, batch.position_of(place)) for batch in batches for place in range(len(batch.rows))]

    whole = read_all(case.source)
    assert len(set(places(whole))) == ROWS
    assert places(read_all(case.source, most=[3])) == places(whole)
    assert places(read_all(case.source, whole[1].next)) == places(whole[2:])


def test_split_batches_have_the_positions_of_the_whole(case):
    batch = next(batch for batch in read_all(case.source) if len(batch.rows) > 2)
    halves = batch.halves()
    assert [half.position_of(place) for half in halves for place in range(len(half.rows))] == [
        batch.position_of(place) for place in range(len(batch.rows))
    ]
    assert [half.next for half in halves] == [None, batch.next]


def test_end_stays_the_end(case):
    with opened(case.source) as reading:
        while reading.read(100) is not None:
            pass
        assert reading.read(100) is None


def test_source_without_rows_ends_at_once(case):
    assert read_all(case.empty) == []


def test_concurrent_readings_are_independent(case):
    with opened(case.source) as one, opened(case.source) as other:
        pairs = [(one.read(9), other.read(9)) for _ in range(4)]
        assert ids([first for first, _ in pairs]) == ids([second for _, second in pairs])


def test_reading_can_be_closed_early_and_twice(case):
    reading = case.source.open(None, case.source.identity())
    reading.read(5)
    reading.close()
    reading.close()
    case.source.open(None, case.source.identity()).close()
    assert ids(read_all(case.source)) == list(range(ROWS))


def test_progress_grows_to_the_total_where_that_is_known(case):
    with opened(case.source) as reading:
        done = [batch.done for batch in iter(lambda: reading.read(8), None)]
        assert done == sorted(done)
        assert reading.total in (None, done[-1])


def test_every_row_has_the_known_columns(case):
    with opened(case.source) as reading:
        assert reading.columns == case.columns
        for batch in iter(lambda: reading.read(8), None):
            assert all(set(case.columns or ()) <= record.keys() for record in batch.rows.records)


def test_identity_is_stable_json(case):
    assert json.loads(json.dumps(case.source.identity())) == case.make().identity()


def test_checkpoint_of_another_source_is_rejected(case):
    for strange in (case.other.identity(), {"kind": "message", "name": "queue"}):
        clause = case.source.difference(json.loads(json.dumps(strange)))
        assert clause
        assert not clause.endswith(".")
        assert "\n" not in clause


def test_record_is_read_back_unchanged(case):
    record = {"id": 7, "name": "repaired"}
    assert case.source.again(record) == record


def test_unreadable_line_fails_again_or_is_a_record_after_edit(case):
    for batch in read_all(case.source):
        for one in batch.unreadable:
            if isinstance(one.raw, dict):
                assert case.source.again(one.raw) == one.raw
                continue
            with pytest.raises((ValueError, TypeError)):
                case.source.again(one.raw)


def test_source_and_its_batches_have_names(case):
    assert case.source.name
    assert all(batch.source and isinstance(batch.source, str) for batch in read_all(case.source))


def test_only_watermark_source_continues_in_the_next_run(case):
    last = read_all(case.source)[-1].next
    if isinstance(case.source, Incremental):
        assert ids(read_all(case.source, case.source.start_of_next_run(last))) == []
    else:
        assert case.source.identity()["kind"] != "query"
