"""Redacted values in rows that a replay reads: no stored or returned text shows them."""

from __future__ import annotations

import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

import redrive
from redrive.store.schema import letters as table

SECRET = "123-45-6789-secret"
ROWS = [{"id": 1, "ssn": "1001"}, {"id": 2, "ssn": SECRET}, {"id": 3, "ssn": "1003"}]


@pytest.fixture(params=[False, True], ids=["stored plain", "stored redacted"])
def store(request, store_url):
    with redrive.connect(store_url, redact=["ssn"], store_redacted=request.param) as opened:
        yield opened


@pytest.fixture(params=["key", "append"])
def sink(request, tmp_path):
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, ssn INTEGER)")
    connection.close()
    how = {"key": "id"} if request.param == "key" else {"append": True}
    return redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "people", **how)


@pytest.fixture
def pages():
    """Pages of which the second fails once."""
    broken = {2}

    def fetch(page):
        if page in broken:
            broken.clear()
            raise ValueError("the page is malformed")
        return {"items": {1: [{"id": 10 + n, "ssn": 7} for n in range(3)], 2: ROWS}.get(page, [])}

    service = redrive.Service("people", retry=redrive.Retry(attempts=1))
    return redrive.rows.pages(service, fetch, bad_page="quarantine", size=3)


@pytest.fixture
def row_group(tmp_path):
    """A Parquet file whose only row group is damaged, and what makes it whole."""
    path = tmp_path / "people.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    whole = path.read_bytes()
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    path.write_bytes(
        whole[:start] + bytes(column.total_compressed_size) + whole[start + column.total_compressed_size :]
    )
    return redrive.rows.parquet(path), lambda: path.write_bytes(whole)


def refuse(record):
    if record["ssn"] == SECRET:
        raise ValueError(f"ssn {record['ssn']} is refused")
    return record


def refuse_frame(frame):
    if SECRET in list(frame["ssn"]):
        raise ValueError(f"ssn {SECRET} is refused")
    return frame


def lose(record):
    if record["ssn"] == SECRET:
        raise ConnectionError(f"no connection while {record['ssn']} was checked")
    return record


CHECKS = {
    "validate": {"validate": refuse},
    "transform": {"transform": refuse},
    "frame": {"transform": redrive.rows.per_frame(refuse_frame)},
    "sink": {},
}


def pipeline(store, source, sink, **options):
    return redrive.Pipeline("people", source=source, sink=sink, store=store, gate=redrive.Gate(abort=1), **options)


def texts(store, loader):
    """Replay, dry and not, and return all that this says and stores."""
    events = []
    end = redrive.on_event(lambda event: events.append(repr(event)))
    try:
        reports = [store.dlq.replay(loader, dry_run=dry_run) for dry_run in (True, False)]
    finally:
        end()
    assert [report.failed_again > 0 for report in reports] == [True, True]
    letters = list(store.dlq.each(status="any"))
    audit = [entry.note for letter in letters for entry in store.dlq.audit(letter.id)]
    causes = [report.by_cause for report in reports]
    noted = select(table.c.last_error, table.c.resolution_note)
    notes = store.database.read(lambda connection: connection.execute(noted).all())
    return repr([events, causes, notes, audit])


class TestFailedRow:
    @pytest.mark.parametrize("check", CHECKS)
    def test_of_page_is_masked(self, store, sink, pages, check):
        loader = pipeline(store, pages, sink, **CHECKS[check])
        loader.run()
        said = texts(store, loader)
        assert "***" in said
        assert SECRET not in said

    @pytest.mark.parametrize("check", CHECKS)
    def test_of_row_group_is_masked(self, store, sink, row_group, check):
        source, repair = row_group
        loader = pipeline(store, source, sink, **CHECKS[check])
        loader.run()
        repair()
        said = texts(store, loader)
        assert "***" in said
        assert SECRET not in said

    @pytest.mark.parametrize("check", CHECKS)
    def test_of_edited_line_is_masked(self, store, sink, tmp_path, check):
        (tmp_path / "people.csv").write_text(f"id,ssn\n1,1001\n2,{SECRET},more\n")
        loader = pipeline(store, redrive.rows.csv(tmp_path / "people.csv"), sink, **CHECKS[check])
        loader.run()
        (letter,) = store.dlq.find()
        store.dlq.edit(letter.id, f"2,{SECRET}".encode())
        said = texts(store, loader)
        assert "***" in said
        assert SECRET not in said

    def test_is_masked_in_letters_of_one_batch(self, store, sink):
        store.dlq.put({"id": 1, "ssn": "1001"}, "refused", pipeline="people")
        store.dlq.put({"id": 2, "ssn": SECRET}, "refused", pipeline="people")
        transform = redrive.rows.per_frame(refuse_frame)
        loader = pipeline(store, redrive.rows.records([]), sink, transform=transform)
        said = texts(store, loader)
        assert SECRET not in said


def test_reason_why_replay_stopped_is_masked(store, sink, pages):
    pipeline(store, pages, sink).run()
    with pytest.raises(redrive.ReplayStopped) as stopped:
        store.dlq.replay(pipeline(store, pages, sink, transform=lose), dry_run=False)
    assert "no connection while *** was checked" in str(stopped.value)
