"""Pipelines: every row that is read ends in the sink or in quarantine, under all faults.

Every test runs with the sink in the store's own database, where rows, letters and checkpoint are one transaction, and
with a separate sink, where they follow each other.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pydantic
import pytest
import sqlalchemy

import redrive
from redrive.errors import SourceError
from redrive.model.runs import (
    BatchQuarantined,
    BatchShrunk,
    BatchWritten,
    ColumnsIgnored,
    GateJudged,
    RunEnded,
    RunStarted,
    Tier,
)
from redrive.store.schema import runs as runs_table

TABLE = "CREATE TABLE deliveries (id TEXT PRIMARY KEY, fee NUMERIC(8, 2) NOT NULL CHECK (fee < 100000))"


class Kit:
    """A store, a table, and pipelines between them."""

    def __init__(self, store: redrive.Store, url: str) -> None:
        self.store, self.url = store, url
        self.events: list[Any] = []
        self._engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        self.execute(TABLE)

    def execute(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement))

    def table(self) -> dict[str, float]:
        with self._engine.begin() as connection:
            rows = connection.execute(sqlalchemy.text("SELECT id, fee FROM deliveries")).all()
        assert len({row.id for row in rows}) == len(rows)
        return {row.id: float(row.fee) for row in rows}

    def rows(self, statement: str) -> list[Any]:
        with self._engine.begin() as connection:
            return list(connection.execute(sqlalchemy.text(statement)).all())

    def letters(self, **filters: Any) -> dict[str | None, Any]:
        return {letter.key: letter for letter in self.store.dlq.each(**filters)}

    def pipeline(self, rows: Any, name: str = "vendor", **options: Any) -> redrive.Pipeline:
        source = rows if hasattr(rows, "open") else redrive.rows.records(rows)
        options = {"validate": fee_is_a_number, "batch": 100, "store": self.store, **options}
        sink = options.pop("sink", None) or redrive.rows.table(self.url, "deliveries", key="id")
        return redrive.Pipeline(name, source=source, sink=sink, on_event=self.events.append, **options)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture(params=["shared", "apart"])
def kit(request: pytest.FixtureRequest, store: redrive.Store, store_url: str, new_store: Any) -> Iterator[Kit]:
    if request.param == "shared":
        made = Kit(store, store_url)
        yield made
        made.close()
        return
    with new_store("sqlite") as url:  # a table elsewhere; what each sink does is in its own suite
        made = Kit(store, url)
        yield made
        made.close()


def fee_is_a_number(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], "fee": float(record["fee"])}


def rows(count: int, *, bad: Callable[[int], bool] = lambda n: False, start: int = 0) -> Callable[[], Iterator[Any]]:
    def make() -> Iterator[dict[str, Any]]:
        for n in range(start, start + count):
            yield {"id": f"D-{n:05}", "fee": "N/A" if bad(n) else f"{n % 90}.50"}

    return make


def stopping_after(batches: int, pipeline: redrive.Pipeline) -> Callable[[Any], None]:
    seen: list[Any] = []

    def watch(progress: Any) -> None:
        seen.append(progress)
        if len(seen) == batches:
            pipeline.stop("the test says so")

    return watch


# ── one run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_valid_rows_are_written_and_rejected_ones_are_letters(kit):
    report = kit.pipeline(rows(1_000, bad=lambda n: n % 33 == 0)).run()
    assert (report.read, report.written, report.rejected, report.status) == (1_000, 969, 31, "complete")
    assert report.rate == pytest.approx(0.031)
    assert report.tier is Tier.P3
    assert report.batches == 10
    assert len(kit.table()) == 969
    (cause,) = kit.store.dlq.causes()
    assert cause.count == 31
    letter = kit.letters()["D-00033"]
    assert letter.record == {"id": "D-00033", "fee": "N/A"}
    assert (letter.position, letter.source, letter.error_type) == ("row 34", "records", "validation")
    assert letter.run_id == report.run_id


def test_28_letter_holds_the_untransformed_record(kit):
    def transform(record: dict[str, Any]) -> dict[str, Any]:
        record["fee"] = record["fee"] * 100  # what the table's CHECK refuses
        return record

    kit.pipeline([{"id": "a", "fee": "5000.25"}, {"id": "b", "fee": "1"}], transform=transform, gate=ALL).run()
    assert kit.letters()["a"].record == {"id": "a", "fee": "5000.25"}
    assert kit.letters()["a"].error_type == "sink"
    assert kit.table() == {"b": 100.0}


ALL = redrive.Gate(abort=1)


def test_second_run_changes_nothing_and_counts_letters_once(kit):
    pipeline = kit.pipeline(rows(300, bad=lambda n: n % 50 == 0))
    first = pipeline.run()
    table = kit.table()
    second = pipeline.run()
    assert second.run_id != first.run_id
    assert kit.table() == table
    assert kit.store.dlq.count() == 6
    assert {letter.seen for letter in kit.letters().values()} == {2}


def test_empty_source_is_a_complete_run(kit):
    report = kit.pipeline([]).run()
    assert (report.read, report.status, report.rate) == (0, "complete", 0)


def test_non_record_is_a_letter(kit):
    report = kit.pipeline([{"id": "a", "fee": 1}, 7, {"id": "b", "fee": 2}], gate=ALL).run()
    assert (report.read, report.written, report.rejected) == (3, 2, 1)
    assert [letter.record for letter in kit.store.dlq.each()] == [7]


def test_row_without_its_key_is_a_letter(kit):
    report = kit.pipeline([{"id": None, "fee": 1}, {"id": "b", "fee": 2}], gate=ALL).run()
    assert (report.written, report.rejected) == (1, 1)
    assert "key" in next(iter(kit.letters().values())).error_message


def test_discarded_row_is_counted_and_not_a_letter(kit):
    def validate(record: dict[str, Any]) -> None:
        if record["fee"] == 13:
            raise redrive.Discard("a test order")

    report = kit.pipeline([{"id": f"{n}", "fee": n} for n in range(20)], validate=validate).run()
    assert (report.written, report.discarded, report.rejected) == (19, 1, 0)
    assert kit.store.dlq.count() == 0


def test_every_row_is_counted(kit):
    def transform(record: dict[str, Any]) -> dict[str, Any] | None:
        return None if record["id"] == "D-00007" else record

    some = [*rows(150, bad=lambda n: n % 10 == 3)(), {"id": "D-00001", "fee": 3}, "rubbish", {"id": "x", "fee": 10**6}]
    report = kit.pipeline(some, transform=transform, batch=200, gate=ALL).run()
    assert report.read == 153
    assert report.read == report.written + report.rejected + report.discarded + report.duplicates
    assert (report.rejected, report.discarded, report.duplicates) == (17, 1, 1)


# ── duplicates ────────────────────────────────────────────────────────────────────────────────────────────────────────

TWICE = [
    {"id": "a", "fee": 1},
    {"id": "b", "fee": 2},
    {"id": "a", "fee": 3},
    {"id": "c", "fee": 4},
    {"id": "a", "fee": 5},
]


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("rule", "kept", "letters"), [("last", 5, 0), ("first", 1, 0), ("quarantine", 1, 2)], ids=lambda value: str(value)
)
def test_30_rule_for_duplicates_applies_to_the_whole_run(kit, batch, rule, kept, letters):
    report = kit.pipeline(TWICE, validate=None, on_duplicate=rule, batch=batch, gate=ALL).run()
    assert kit.table() == {"a": kept, "b": 2, "c": 4}
    assert kit.store.dlq.count() == report.rejected == letters
    assert report.read == report.written + report.rejected + report.duplicates == 5


def test_29_key_twice_in_one_statement_is_written_once(kit):
    same = [{"id": "a", "fee": n} for n in range(50)]
    report = kit.pipeline(same, batch=50).run()
    assert kit.table() == {"a": 49}
    assert report.duplicates == 49


def test_rule_for_duplicates_applies_across_a_stop(kit):
    pipeline = kit.pipeline(lambda: iter(TWICE), validate=None, on_duplicate="first", batch=2)
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=stopping_after(1, pipeline))
    report = pipeline.run()
    assert kit.table() == {"a": 1, "b": 2, "c": 4}
    assert report.duplicates == 2


@pytest.mark.parametrize("rule", ["last", "first"])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_row_rejected_by_the_sink_supersedes_none(kit, rule, batch):
    fees = {"last": [5, 6, 10**7, 10**7], "first": [10**7, 10**7, 5, 6]}[rule]
    same = [{"id": "a", "fee": fee} for fee in fees]
    report = kit.pipeline(same, validate=None, on_duplicate=rule, batch=batch, gate=ALL).run()
    assert kit.table() == {"a": {"last": 6, "first": 5}[rule]}
    assert report.read == report.written + report.rejected + report.duplicates == 4


def test_equal_numbers_are_one_key_across_batches(kit):
    kit.execute("CREATE TABLE numbered (n NUMERIC PRIMARY KEY, fee NUMERIC)")
    same = [{"n": Decimal("1.0"), "fee": 1}, {"n": Decimal("1.00"), "fee": 2}, {"n": 1, "fee": 3}]
    sink = redrive.rows.table(kit.url, "numbered", key="n")
    report = kit.pipeline(same, validate=None, sink=sink, on_duplicate="first", batch=1).run()
    assert (report.written, report.duplicates) == (1, 2)


# ── letters of their own ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 100])
def test_rejected_rows_of_one_key_keep_their_own_letters(kit, batch):
    same = [{"id": "a", "fee": "N/A", "n": n} for n in range(3)]
    pipeline = kit.pipeline(same, batch=batch, gate=ALL)
    pipeline.run()
    assert sorted(letter.record["n"] for letter in kit.store.dlq.each()) == [0, 1, 2]
    pipeline.run()
    assert sorted((letter.record["n"], letter.seen) for letter in kit.store.dlq.each()) == [(0, 2), (1, 2), (2, 2)]


class TestSameKeyInNextFile:
    """A letter is identified by its key only if no function can change the key before the sink."""

    class Delivery(pydantic.BaseModel):
        id: str
        fee: float

    WEEKS = ([{"id": "a", "fee": "N/A"}], [{"id": "z", "fee": "1"}, {"id": "a", "fee": "n/a"}])

    def test_is_the_same_letter_under_a_plain_model(self, kit):
        for week in self.WEEKS:
            kit.pipeline(week, validate=self.Delivery, gate=ALL).run()
        (letter,) = kit.store.dlq.each()
        assert (letter.seen, letter.record["fee"], letter.position) == (2, "n/a", "row 2")

    def test_is_a_letter_of_its_own_under_a_function(self, kit):
        for week in self.WEEKS:
            kit.pipeline(week, gate=ALL).run()
        assert [letter.record["fee"] for letter in kit.store.dlq.each()] == ["N/A", "n/a"]

    def test_is_a_separate_letter_if_a_validator_builds_the_key(self, kit):
        class Tenant(self.Delivery):
            @pydantic.model_validator(mode="before")
            @classmethod
            def with_tenant(cls, record: dict[str, Any]) -> dict[str, Any]:
                return {**record, "id": f"{record['tenant']}-{record['id']}"}

        for tenant in ("EU", "US"):
            kit.pipeline([{"id": "1", "tenant": tenant, "fee": "N/A"}], validate=Tenant, gate=ALL).run()
        assert [letter.record["tenant"] for letter in kit.store.dlq.each()] == ["EU", "US"]


def test_parts_of_a_key_do_not_run_into_each_other(kit):
    kit.execute("CREATE TABLE pairs (a TEXT, b TEXT, fee NUMERIC, PRIMARY KEY (a, b))")
    sink = redrive.rows.table(kit.url, "pairs", key=("a", "b"))
    some = [{"a": "x|y", "b": "z", "fee": "N/A"}, {"a": "x", "b": "y|z", "fee": "N/A"}]

    def check(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "fee": float(record["fee"])}

    kit.pipeline(some, sink=sink, validate=check, gate=ALL).run()
    assert {letter.key for letter in kit.store.dlq.each()} == {r"x\|y|z", r"x|y\|z"}


# ── records whose fields come and go ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_record_without_its_key_is_a_letter_in_any_batch(kit, batch):
    some = [{"id": "a", "fee": 1}, {"id": "b", "fee": 2}, {"fee": 3}]
    report = kit.pipeline(some, validate=None, batch=batch, gate=ALL).run()
    assert (report.written, report.rejected) == (2, 1)
    assert kit.table() == {"a": 1, "b": 2}


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_record_without_a_required_field_is_a_letter(kit, batch):
    some = [{"id": "a", "fee": 1}, {"id": "b", "fee": 2}, {"id": "c"}]
    report = kit.pipeline(some, validate=None, batch=batch, gate=ALL).run()
    assert (report.written, report.rejected) == (2, 1)
    assert kit.letters()["c"].error_type == "sink"


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_record_with_an_unknown_field_is_a_letter(kit, batch):
    some = [{"id": "a", "fee": 1}, {"id": "b", "fee": 2}, {"id": "c", "fee": 3, "surprise": 1}, {"id": "d", "fee": 4}]
    report = kit.pipeline(some, validate=None, batch=batch, gate=ALL).run()
    assert (report.written, report.rejected) == (3, 1)
    assert (kit.letters()["c"].error_type, "surprise" in kit.letters()["c"].error_message) == ("schema", True)


def test_fields_unknown_to_the_sink_in_all_records_end_the_run(kit):
    with pytest.raises(redrive.RunStopped, match="'surprise'") as stopped:
        kit.pipeline([{"id": "a", "fee": 1, "surprise": 1}] * 3, validate=None, gate=ALL).run()
    assert (stopped.value.report.read, kit.store.dlq.count()) == (0, 0)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_missing_field_is_null_beside_any_rows(kit, batch):
    kit.execute("CREATE TABLE noted (id TEXT PRIMARY KEY, note TEXT)")
    kit.execute("INSERT INTO noted VALUES ('b', 'old'), ('c', 'old')")
    some = [{"id": "a", "note": "new"}, {"id": "b"}, {"id": "c"}]
    kit.pipeline(some, validate=None, batch=batch, sink=redrive.rows.table(kit.url, "noted", key="id")).run()
    assert dict(kit.rows("SELECT id, note FROM noted")) == {"a": "new", "b": None, "c": None}


# ── stopping and going on ─────────────────────────────────────────────────────────────────────────────────────────────


def test_stopped_run_resumes_at_its_checkpoint(kit):
    pipeline = kit.pipeline(rows(1_000, bad=lambda n: n % 100 == 5))
    with pytest.raises(redrive.RunStopped, match="the test says so") as stopped:
        pipeline.run(watch=stopping_after(3, pipeline))
    part = stopped.value.report
    assert stopped.value.kind == "transient"
    # The batch that was in hand when it was told is finished.
    assert (part.status, part.read, part.checkpoint["row"]) == ("stopped", 400, 400)
    assert len(kit.table()) == part.written == 396
    report = pipeline.run()
    assert report.resumed
    assert report.run_id == part.run_id
    assert (report.read, report.written, report.rejected, report.batches) == (1_000, 990, 10, 10)
    assert {letter.seen for letter in kit.letters().values()} == {1}
    assert kit.of(RunStarted)[1].checkpoint == part.checkpoint


def test_failed_source_loses_nothing_and_is_resumed(kit):
    broken = True

    def source() -> Iterator[dict[str, Any]]:
        for record in rows(500)():
            if broken and record["id"] == "D-00250":
                raise ConnectionResetError("the vendor hung up")
            yield record

    pipeline = kit.pipeline(source, patience=0.2)
    with pytest.raises(redrive.RunStopped, match="the vendor hung up") as stopped:
        pipeline.run()
    assert stopped.value.kind == "transient"
    assert isinstance(stopped.value.__cause__, ConnectionResetError)
    assert stopped.value.report.status == "failed"
    assert len(kit.table()) == stopped.value.report.written
    broken = False
    assert pipeline.run().written == 500
    assert len(kit.table()) == 500


def test_bug_in_a_validator_stops_the_run_and_is_named(kit):
    def validate(record: dict[str, Any]) -> None:
        record.fees  # type: ignore[attr-defined]  # noqa: B018

    with pytest.raises(redrive.RunStopped, match="AttributeError") as stopped:
        kit.pipeline(rows(10), validate=validate).run()
    assert stopped.value.kind == "permanent"
    assert kit.table() == {}


def test_26_checkpoint_follows_rows_in_sink_and_quarantine(kit, monkeypatch):
    pipeline = kit.pipeline(rows(300, bad=lambda n: n % 10 == 0))
    real, puts = kit.store.dlq.put_within, []

    def failing(*args: Any, **options: Any) -> Any:
        puts.append(args)
        if len(puts) == 3:  # of the second batch: letters before and behind its last written row are put apart
            raise redrive.StoreError("no space left")
        return real(*args, **options)

    monkeypatch.setattr(kit.store.dlq, "put_within", failing)
    with pytest.raises(redrive.RunStopped, match="no space left") as stopped:
        pipeline.run()
    assert stopped.value.report.checkpoint["row"] == 100
    assert kit.store.dlq.count() == 10
    report = pipeline.run()
    assert (report.read, report.written, report.rejected) == (300, 270, 30)
    assert len(kit.table()) == 270
    assert {letter.seen for letter in kit.letters().values()} == {1}


def test_deadline_ends_the_run_after_its_batch(kit):
    with pytest.raises(redrive.RunStopped, match="deadline") as stopped:
        kit.pipeline(rows(1_000)).run(deadline=1e-9)
    assert stopped.value.kind == "transient"
    assert len(kit.table()) == stopped.value.report.written == 100


def test_sigterm_ends_the_run_behind_its_batch(kit):
    before = signal.getsignal(signal.SIGTERM)
    pipeline = kit.pipeline(rows(1_000))

    def watch(progress: Any) -> None:
        if progress.counts.batches == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(redrive.RunStopped, match="SIGTERM"):
        pipeline.run(watch=watch)
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(kit.table()) == 300
    assert pipeline.run().written == 1_000


def test_interrupt_keeps_written_rows(kit):
    def watch(progress: Any) -> None:
        raise KeyboardInterrupt

    pipeline = kit.pipeline(rows(1_000))
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(watch=watch)
    (run,) = kit.store.runs.find()
    assert (run.status, run.reason) == ("stopped", "interrupted")
    assert pipeline.run().written == 1_000


def test_exit_of_a_validator_is_recorded_as_a_stop(kit):
    def validate(row: Any) -> Any:
        if not is_fixed and row["id"] == "D-00250":
            sys.exit()
        return row

    is_fixed = False
    pipeline = kit.pipeline(rows(1_000), validate=validate)
    with pytest.raises(SystemExit):
        pipeline.run()
    (run,) = kit.store.runs.find()
    assert (run.status, run.reason) == ("stopped", "interrupted: code of the pipeline called sys.exit()")
    is_fixed = True
    assert pipeline.run().written == 1_000


def test_exit_of_a_source_is_recorded_before_its_first_batch(kit):
    def items() -> Any:
        yield from rows(10)()
        sys.exit("no more")

    with pytest.raises(SystemExit):
        kit.pipeline(items).run()
    (run,) = kit.store.runs.find()
    assert (run.status, run.reason) == ("stopped", "interrupted: code of the pipeline called sys.exit('no more')")


def test_restarting_gives_the_unfinished_run_up(kit):
    pipeline = kit.pipeline(rows(500))
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=stopping_after(2, pipeline))
    report = pipeline.run(restart=True)
    assert not report.resumed
    assert report.read == 500
    assert [run.status for run in kit.store.runs.find()] == ["complete", "abandoned"]


def test_checkpoint_of_another_source_raises_one_sentence(kit):
    pipeline = kit.pipeline(redrive.rows.records(rows(500), name="monday"))
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=stopping_after(2, pipeline))
    with pytest.raises(redrive.PipelineError, match=r"unfinished run over monday.*tuesday.*--restart"):
        kit.pipeline(redrive.rows.records(rows(500), name="tuesday")).run()
    assert pipeline.run().written == 500


def test_checkpoint_is_not_used_with_another_sink(kit):
    kit.execute(TABLE.replace("deliveries", "elsewhere"))
    pipeline = kit.pipeline(rows(500))
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=stopping_after(2, pipeline))
    other = kit.pipeline(rows(500), sink=redrive.rows.table(kit.url, "elsewhere", key="id"))
    with pytest.raises(redrive.PipelineError, match=r"has written to deliveries.*elsewhere.*--restart"):
        other.run()
    assert other.run(restart=True).written == 500


def test_run_without_rows_allows_another_source(kit):
    def broken() -> Iterator[Any]:
        raise ConnectionRefusedError
        yield

    with pytest.raises(redrive.RunStopped):
        kit.pipeline(redrive.rows.records(broken, name="monday"), patience=0).run()
    assert kit.pipeline(redrive.rows.records(rows(5), name="tuesday")).run().written == 5


# ── failed starts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_run_that_cannot_start_is_listed_with_its_reason(kit, tmp_path):
    missing = tmp_path / "missing.csv"
    pipeline = kit.pipeline(redrive.rows.csv(missing), sla="06:30 UTC")
    with pytest.raises(SourceError, match=r"missing\.csv") as refused:
        pipeline.run()
    (run,) = kit.store.runs.find()
    assert (run.status, run.reason, run.read) == ("failed", str(refused.value), 0)
    assert run.seconds > 0  # as long as it was tried
    assert run.ended_at - run.started_at == timedelta(seconds=run.seconds)
    assert run.sla is not None
    (event,) = kit.events
    assert event == RunEnded(report=run, error="SourceError", kind="permanent")
    (alert,) = kit.store.alerts.find(status="open")
    assert (alert.condition, alert.facts.run_id) == ("permanent_error", run.run_id)
    missing.write_text("id,fee\na,1\n")
    assert pipeline.run().written == 1
    assert [run.status for run in kit.store.runs.find()] == ["complete", "failed"]
    assert kit.store.alerts.find(status="open") == []


@pytest.mark.parametrize("restart", [False, True])
def test_failed_start_keeps_the_unfinished_run(kit, tmp_path, restart):
    pipeline = kit.pipeline(rows(500))
    with pytest.raises(redrive.RunStopped) as stopped:
        pipeline.run(watch=stopping_after(2, pipeline))
    before = kit.store.runs.get(stopped.value.report.run_id)
    with pytest.raises(SourceError):
        kit.pipeline(redrive.rows.csv(tmp_path / "missing.csv")).run(restart=restart)
    with pytest.raises(redrive.PipelineError, match="unfinished run"):
        kit.pipeline(redrive.rows.records(rows(500), name="tuesday")).run()
    assert kit.store.runs.get(before.run_id) == before
    report = pipeline.run(restart=restart)
    assert (report.resumed, report.run_id == before.run_id) == (not restart, not restart)
    assert len(kit.table()) == 500
    # Nobody's failures but their own.
    assert failures(kit) == {"failed": [0, 0], "complete": [0], **({"abandoned": [0]} if restart else {})}


def test_failed_start_beside_a_running_one_is_not_recorded(kit, tmp_path):
    pipeline, other = kit.pipeline(rows(300)), kit.pipeline(redrive.rows.csv(tmp_path / "missing.csv"))
    refused: list[BaseException] = []

    def watch(progress: Any) -> None:
        for one in (other, kit.pipeline(rows(300))):
            with pytest.raises(redrive.RedriveError) as error:
                one.run()
            refused.append(error.value)

    pipeline.run(watch=watch)
    assert [type(error).__name__ for error in refused] == ["SourceError", "RunStopped"] * 3
    assert [run.status for run in kit.store.runs.find()] == ["complete"]


def test_failed_start_is_reported_even_if_unrecorded(kit, tmp_path, monkeypatch):
    def down(*args: Any, **options: Any) -> Any:
        raise redrive.StoreError("no space left")

    monkeypatch.setattr(kit.store.database, "write", down)
    with pytest.raises(SourceError, match=r"missing\.csv"):
        kit.pipeline(redrive.rows.csv(tmp_path / "missing.csv")).run()
    assert kit.events == []


def test_source_with_an_undecodable_name_is_reported(kit, tmp_path):
    with pytest.raises(SourceError):
        kit.pipeline(redrive.rows.csv(tmp_path / "half \udcff.csv")).run()
    (run,) = kit.store.runs.find()
    assert run.source.endswith("half \\udcff.csv")


# ── failure counts ────────────────────────────────────────────────────────────────────────────────────────────────────


def failures(kit: Kit) -> dict[str, list[int]]:
    """How often each run had failed before, by how it ended."""
    found: dict[str, list[int]] = {}
    listed = sqlalchemy.select(runs_table.c.status, runs_table.c.failures)
    for row in kit.store.database.read(lambda connection: connection.execute(listed).all()):
        found.setdefault(row.status, []).append(row.failures)
    return {status: sorted(counts) for status, counts in found.items()}


def test_run_that_keeps_failing_at_once_is_counted(kit):
    def broken() -> Iterator[Any]:
        raise ConnectionRefusedError
        yield

    for _ in range(3):
        with pytest.raises(redrive.RunStopped):
            kit.pipeline(broken, patience=0).run()
    kit.pipeline(rows(5)).run()
    assert failures(kit) == {"abandoned": [0, 1, 2], "complete": [3]}
    kit.pipeline(rows(5)).run()
    assert failures(kit) == {"abandoned": [0, 1, 2], "complete": [0, 3]}


def test_restart_resets_the_failure_count(kit):
    def broken() -> Iterator[Any]:
        raise ConnectionRefusedError
        yield

    with pytest.raises(redrive.RunStopped):
        kit.pipeline(broken, patience=0).run()
    kit.pipeline(rows(5)).run(restart=True)
    assert failures(kit) == {"abandoned": [0], "complete": [0]}


@pytest.mark.parametrize("said", ["half \ud800 pair", "a \0 byte"])
def test_run_with_an_unstorable_error_ends_recorded(kit, said):
    def broken() -> Iterator[Any]:
        raise redrive.Permanent(said)
        yield

    with pytest.raises(redrive.RunStopped) as stopped:
        kit.pipeline(broken).run()
    shown = said.replace("\ud800", "\\ud800").replace("\0", "\\x00")
    assert stopped.value.report.reason == shown
    (run,) = kit.store.runs.find()
    assert (run.status, run.reason) == ("failed", shown)
    (alert,) = kit.store.alerts.find(status="open")
    assert (alert.condition, alert.urgency) == ("permanent_error", "P1")


# ── in one process, and in one place ──────────────────────────────────────────────────────────────────────────────────


def test_pipeline_is_run_by_one_process_at_a_time(kit):
    pipeline, other = kit.pipeline(rows(300)), kit.pipeline(rows(300))
    refused: list[BaseException] = []

    def watch(progress: Any) -> None:
        try:
            other.run()
        except redrive.RunStopped as error:
            refused.append(error)

    pipeline.run(watch=watch)
    assert len(refused) == 3
    assert "is being run by process" in str(refused[0])
    assert refused[0].kind == "transient"  # type: ignore[attr-defined]


def test_run_works_in_any_thread(kit):
    reports: list[Any] = []
    pipeline = kit.pipeline(rows(250))
    thread = threading.Thread(target=lambda: reports.append(pipeline.run()))
    thread.start()
    thread.join(60)
    assert reports[0].written == 250


# ── the gate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("percent", "tier"), [(0.5, "log"), (3, "P3"), (7, "P1")])
def test_gate_reports_the_tier_of_a_passing_run(kit, percent, tier):
    report = kit.pipeline(rows(2_000, bad=lambda n: n % 200 < percent * 2)).run()
    assert (report.status, report.tier) == ("complete", tier)
    assert kit.of(GateJudged)[-1].tier == tier
    assert kit.of(GateJudged)[-1].final


def test_27_abort_keeps_valid_rows_letters_and_checkpoint(kit):
    pipeline = kit.pipeline(rows(4_000, bad=lambda n: n % 4 == 0))
    with pytest.raises(redrive.GateAborted, match=r"25.0%.*redrive dlq causes") as aborted:
        pipeline.run()
    report = aborted.value.report
    assert (report.status, report.tier, report.read) == ("aborted", "abort", 1_000)
    assert report.checkpoint["row"] == 1_000
    assert len(kit.table()) == report.written == 750
    assert kit.store.dlq.count() == report.rejected == 250
    assert kit.of(GateJudged)[-1].tier is Tier.ABORT


def test_small_source_is_judged_at_its_end(kit):
    with pytest.raises(redrive.GateAborted):
        kit.pipeline(rows(100, bad=lambda n: n % 2 == 0)).run()
    assert len(kit.table()) == 50
    assert kit.store.dlq.count() == 50


def test_tiny_source_neither_aborts_nor_pages(kit):
    report = kit.pipeline(rows(38, bad=lambda n: n % 2 == 0)).run()
    assert (report.status, report.rejected, report.tier) == ("complete", 19, "P3")
    paged = kit.pipeline(rows(40, bad=lambda n: n % 2 == 0), "another").run()
    assert (paged.status, paged.rejected, paged.tier) == ("complete", 20, "P1")


class TestAbortedRun:
    def test_stays_aborted_at_every_start(self, kit):
        pipeline = kit.pipeline(rows(4_000, bad=lambda n: n < 900))
        with pytest.raises(redrive.GateAborted) as first:
            pipeline.run()
        for _ in range(2):
            with pytest.raises(redrive.GateAborted, match=r"stays aborted.*--restart.*--override-gate") as again:
                pipeline.run()
            assert again.value.report.run_id == first.value.report.run_id
            assert again.value.report.status == "aborted"
        assert kit.store.runs.get("vendor").read == first.value.report.read
        assert len(kit.store.runs.find()) == 1

    def test_is_resumed_by_an_operator_and_the_rest_is_judged(self, kit):
        pipeline = kit.pipeline(rows(4_000, bad=lambda n: n < 900))
        with pytest.raises(redrive.GateAborted):
            pipeline.run()
        report = pipeline.run(override_gate=True)
        assert (report.status, report.read, report.rejected, report.tier) == ("complete", 4_000, 900, "P3")

    def test_is_replaced_by_a_restart(self, kit):
        with pytest.raises(redrive.GateAborted):
            kit.pipeline(rows(4_000, bad=lambda n: n < 900)).run()
        report = kit.pipeline(rows(4_000)).run(restart=True)
        assert (report.status, report.written) == ("complete", 4_000)

    def test_without_rows_stays_aborted(self, kit):
        pipeline = kit.pipeline(rows(0), gate=redrive.Gate(at_least=1))
        for _ in range(2):
            with pytest.raises(redrive.GateAborted, match="0 rows were read, and at least 1 are expected"):
                pipeline.run()
        assert pipeline.run(override_gate=True).status == "complete"


def test_too_few_rows_abort_a_run(kit):
    gate = redrive.Gate(at_least=100)
    assert kit.pipeline(rows(100), gate=gate).run().status == "complete"
    with pytest.raises(redrive.GateAborted, match="99 rows were read, and at least 100 are expected") as aborted:
        kit.pipeline(rows(99), gate=gate).run()
    assert (aborted.value.report.status, aborted.value.report.written) == ("aborted", 99)


def test_gate_counts_input_rows_of_a_transform_that_splits(kit):
    import polars as pl

    def split(frame: pl.DataFrame) -> pl.DataFrame:
        bad = pl.col("id").str.ends_with("00")
        parts = frame.with_columns(fee=pl.when(bad).then(1e6).otherwise(1.0), part=list(range(10))).explode("part")
        return parts.with_columns(id=pl.format("{}-{}", "id", "part")).drop("part")

    report = kit.pipeline(rows(3_300), transform=redrive.rows.per_frame(split, row="number")).run()
    assert (report.read, report.rejected, report.written, report.tier) == (3_300, 33, 32_670, "P3")
    assert kit.store.dlq.count() == 33


def test_written_is_the_number_of_rows_in_the_sink(kit):
    report = kit.pipeline([*rows(250)(), *rows(250)(), *rows(50, start=240)()]).run()
    assert (report.read, report.written, report.duplicates) == (550, 290, 260)
    assert len(kit.table()) == 290


def test_keys_of_the_first_part_count_in_a_resumed_run(kit):
    pipeline = kit.pipeline([*rows(250)(), *rows(250)()])
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=stopping_after(2, pipeline))
    report = pipeline.run()
    assert (report.resumed, report.read, report.written, report.duplicates) == (True, 500, 250, 250)


class TestUnwrittenColumns:
    class Delivery(pydantic.BaseModel):
        id: str
        fee: float

    def test_of_a_file_are_reported(self, kit, tmp_path):
        path = tmp_path / "deliveries.csv"
        path.write_text("id,fee,colour,size\na,1,red,2\n")
        report = kit.pipeline(redrive.rows.csv(path), validate=self.Delivery).run()
        assert (report.status, report.ignored_columns) == ("complete", ("colour", "size"))
        assert "columns not written: colour, size" in str(report)
        (event,) = kit.of(ColumnsIgnored)
        assert (event.pipeline, event.source, event.columns) == ("vendor", str(path), ("colour", "size"))

    def test_of_records_are_reported_at_their_first_row(self, kit):
        records = [
            {"id": "a", "fee": 1},
            {"id": "b", "fee": 1, "colour": "red"},
            {"id": "c", "fee": 1, "colour": "red"},
        ]
        report = kit.pipeline(records, validate=self.Delivery, batch=1).run()
        assert report.ignored_columns == ("colour",)
        assert len(kit.of(ColumnsIgnored)) == 1

    def test_end_the_run_if_rejected(self, kit, tmp_path):
        path = tmp_path / "deliveries.csv"
        path.write_text("id,fee,colour\na,1,red\n")
        with pytest.raises(redrive.RunStopped, match="does not name: colour; add them there"):
            kit.pipeline(redrive.rows.csv(path), validate=self.Delivery, on_new_column="reject").run()
        assert kit.table() == {}

    def test_are_not_reported_where_the_model_takes_all(self, kit, tmp_path):
        path = tmp_path / "deliveries.csv"
        path.write_text("id,fee\na,1\n")
        assert kit.pipeline(redrive.rows.csv(path), validate=self.Delivery).run().ignored_columns == ()

    def test_unknown_rule_is_rejected(self, kit):
        with pytest.raises(ValueError, match="on_new_column must be 'ignore' or 'reject', not 'add'"):
            kit.pipeline([], on_new_column="add")


class TestHeaderWithoutRows:
    def test_without_the_sink_key_is_rejected(self, kit, tmp_path):
        path = tmp_path / "deliveries.csv"
        path.write_text("order,fee\n")
        with pytest.raises(redrive.RunStopped, match="the sink's key needs 'id'"):
            kit.pipeline(redrive.rows.csv(path), validate=None).run()

    def test_with_a_column_missing_in_the_sink_is_rejected(self, kit, tmp_path):
        path = tmp_path / "deliveries.csv"
        path.write_text("id,fee,colour\n")
        with pytest.raises(redrive.RunStopped, match="colour"):
            kit.pipeline(redrive.rows.csv(path), validate=None).run()

    def test_that_fits_is_complete(self, kit, tmp_path):
        path = tmp_path / "deliveries.csv"
        path.write_text("id,fee\n")
        assert kit.pipeline(redrive.rows.csv(path), validate=None).run().status == "complete"


# ── whole batches ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_batch_transform_is_one_letter_and_run_continues(kit):
    import polars as pl

    def transform(frame: pl.DataFrame) -> pl.DataFrame:
        if frame["id"].is_between(pl.lit("D-00100"), pl.lit("D-00199")).any():
            raise ValueError("this batch makes no sense")
        return frame

    pipeline = kit.pipeline(rows(1_000), transform=redrive.rows.per_frame(transform))
    report = pipeline.run()
    assert (report.written, report.rejected) == (900, 100)
    (letter,) = kit.store.dlq.each()
    assert (letter.error_type, letter.position) == ("batch", "row 101 to row 200")
    assert [record["id"] for record in letter.record] == [f"D-{n:05}" for n in range(100, 200)]
    assert kit.of(BatchQuarantined)[0].rows == 100
    fixed = kit.pipeline(rows(0))
    assert kit.store.dlq.replay(fixed, pipeline="vendor", dry_run=False).reprocessed == 1
    assert len(kit.table()) == 1_000


def test_memory_that_does_not_suffice_halves_the_batch(kit):
    def validate(record: dict[str, Any]) -> dict[str, Any]:
        return fee_is_a_number(record)

    def transform(frame: Any) -> Any:
        if frame.height > 60:
            raise MemoryError
        return frame

    pipeline = kit.pipeline(
        rows(1_000, bad=lambda n: n % 100 == 7), validate=validate, transform=redrive.rows.per_frame(transform)
    )
    report = pipeline.run()
    assert (report.read, report.written, report.rejected) == (1_000, 990, 10)
    assert len(kit.table()) == 990
    assert {letter.seen for letter in kit.letters().values()} == {1}
    assert [event.rows for event in kit.of(BatchShrunk)] == [50]


def test_memory_that_never_suffices_ends_the_run(kit):
    def transform(frame: Any) -> Any:
        raise MemoryError

    with pytest.raises(redrive.RunStopped, match="MemoryError") as stopped:
        kit.pipeline(rows(1_000), transform=redrive.rows.per_frame(transform)).run()
    assert stopped.value.kind == "resource"


def test_sink_out_of_memory_gets_smaller_batches(kit):
    table = redrive.rows.table(kit.url, "deliveries", key="id")
    for name in ("write", "write_within"):
        real = getattr(table, name)  # one of the two is used

        def write(*args: Any, real: Any = real, **options: Any) -> Any:
            if len(args[-1]) > 30:
                raise MemoryError
            return real(*args, **options)

        setattr(table, name, write)
    report = kit.pipeline(rows(400), sink=table).run()
    assert (report.read, report.written) == (400, 400)
    assert len(kit.table()) == 400


def test_error_of_the_watch_function_does_not_blame_the_sink(kit):
    def watch(progress: Any) -> None:
        raise MemoryError

    with pytest.raises(redrive.RunStopped, match="MemoryError") as stopped:
        kit.pipeline(rows(100)).run(watch=watch)
    assert (stopped.value.report.read, stopped.value.report.written) == (100, 100)


# ── events and reports ────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_step_is_an_event(kit):
    report = kit.pipeline(rows(250)).run()
    assert [type(event).__name__ for event in kit.events] == [
        "RunStarted",
        "BatchWritten",
        "BatchWritten",
        "BatchWritten",
        "GateJudged",
        "RunEnded",
    ]
    assert kit.of(BatchWritten)[-1].so_far.read == 250
    assert kit.of(RunEnded)[0].report == report


def test_report_is_stored(kit):
    report = kit.pipeline(rows(250, bad=lambda n: n == 3)).run()
    kept = kit.store.runs.get(report.run_id)
    differs = {"seconds", "throughput"}  # it was saved a moment before
    assert {k: v for k, v in kept.document().items() if k not in differs} == {
        k: v for k, v in report.document().items() if k not in differs
    }
    assert kit.store.runs.get("vendor").run_id == report.run_id
    assert kit.store.runs.get(str(report.run_id)[:8]).run_id == report.run_id
    with pytest.raises(redrive.PipelineError, match="there is no run"):
        kit.store.runs.get("nobody")


def test_report_is_readable(kit):
    text = str(kit.pipeline(rows(250, bad=lambda n: n % 50 == 3)).run())
    assert "read 250, written 245, rejected 5 (2.0%, P3)" in text
    assert "redrive dlq causes --run" in text


# ── sending back ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lenient(record: dict[str, Any]) -> dict[str, Any]:
    return fee_is_a_number({**record, "fee": 0} if record["fee"] == "N/A" else record)


def test_letters_go_back_through_the_fixed_pipeline(kit):
    kit.pipeline(rows(1_000, bad=lambda n: n % 33 == 0)).run()
    fixed = kit.pipeline(rows(0), validate=lenient)
    rehearsal = kit.store.dlq.replay(fixed, pipeline="vendor")
    assert (rehearsal.reprocessed, rehearsal.rehearsed) == (31, True)
    assert len(kit.table()) == 969
    report = kit.store.dlq.replay(fixed, pipeline="vendor", dry_run=False)
    assert (report.reprocessed, report.failed_again) == (31, 0)
    assert len(kit.table()) == 1_000
    assert kit.store.dlq.count(status="pending") == 0


def test_letters_rejected_by_the_sink_fail_again_on_replay(kit):
    kit.pipeline([{"id": "a", "fee": 10**7}, {"id": "b", "fee": "N/A"}], gate=ALL).run()
    fixed = kit.pipeline(rows(0), validate=lenient)
    rehearsal = kit.store.dlq.replay(fixed, pipeline="vendor")
    assert (rehearsal.reprocessed, rehearsal.failed_again) == (1, 1)
    assert kit.table() == {}
    report = kit.store.dlq.replay(fixed, pipeline="vendor", dry_run=False)
    assert (report.reprocessed, report.failed_again) == (1, 1)
    assert kit.table() == {"b": 0}


def test_edited_record_is_sent(kit):
    kit.pipeline([{"id": "b", "fee": "N/A"}], gate=ALL).run()
    (letter,) = kit.store.dlq.each()
    kit.store.dlq.edit(letter.id, patch={"fee": "7.25"})
    assert kit.store.dlq.replay(kit.pipeline(rows(0)), pipeline="vendor", dry_run=False).reprocessed == 1
    assert kit.table() == {"b": 7.25}


def test_letter_without_a_row_is_not_counted_as_success(kit):
    kit.store.dlq.put([], "an empty batch", pipeline="vendor", error_type="batch")
    report = kit.store.dlq.replay(kit.pipeline(rows(0)), pipeline="vendor", dry_run=False)
    assert (report.reprocessed, report.failed_again) == (0, 1)


# ── invalid arguments ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_table_of_another_shape_is_reported_before_any_write(kit):
    with pytest.raises(redrive.RunStopped, match="city") as stopped:
        kit.pipeline([{"id": "a", "fee": 1, "city": "Pune"}], validate=None).run()
    assert stopped.value.kind == "permanent"
    assert kit.table() == {}


def test_missing_table_is_reported(kit):
    with pytest.raises(redrive.RunStopped, match="nowhere"):
        kit.pipeline(rows(5), sink=redrive.rows.table(kit.url, "nowhere", key="id")).run()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 0}, "batch must be a whole number"),
        ({"on_duplicate": "maybe"}, "on_duplicate must be one of"),
        ({"gate": 0.2}, "gate is a redrive.Gate"),
        ({"sla": "half past six"}, "sla must be"),
        ({"deadline": -1}, "deadline must be"),
        ({"source": []}, "source must be one of redrive's"),
        ({"sink": {}}, "sink must be one of redrive's"),
        ({"validate": 5}, "validate"),
        ({"name": ""}, "a pipeline needs a name"),
    ],
)
def test_invalid_pipeline_raises_at_construction(tmp_path, options, says):
    usual = {
        "name": "vendor",
        "source": redrive.rows.records([]),
        "sink": redrive.rows.table(f"sqlite:///{tmp_path}/x.db", "t", key="id"),
        **options,
    }
    with pytest.raises((TypeError, ValueError, redrive.RedriveError), match=says):
        redrive.Pipeline(usual.pop("name"), **usual)
