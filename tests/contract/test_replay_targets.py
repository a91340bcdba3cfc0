"""Which letters a replay sends to which target, and how fast."""

import contextlib
import datetime as dt
import sqlite3

import pytest
from sqlalchemy import update

import redrive
from redrive.dlq.replay.claims import Claims
from redrive.store.schema import letters as letters_table


class Kept:
    """A target that keeps what it is sent."""

    def __init__(self, refuse=()):
        self.records, self.sizes, self.refuse = [], [], set(refuse)

    def reprocess(self, records, *, dry_run=False):
        self.sizes.append(len(records))
        if not dry_run:
            self.records += [record["id"] for record in records if record["id"] not in self.refuse]
        return ["no" if record["id"] in self.refuse else None for record in records]


@pytest.fixture
def letters(dlq):
    def put(pipeline, *ids, error="fee is not a number"):
        dlq.put_many([redrive.NewLetter({"id": one}, error, key=str(one)) for one in ids], pipeline=pipeline)

    return put


@pytest.fixture
def pipeline_of(store, tmp_path):
    def make(name):
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", name, key="id", create=True)
        return redrive.Pipeline(name, source=redrive.rows.records([]), sink=sink, store=store)

    return make


class TestPipelineAsTarget:
    def test_takes_its_own_letters_only(self, dlq, letters, pipeline_of):
        letters("invoices", 1, 2)
        letters("payments", 9)
        report = dlq.replay(pipeline_of("invoices"), dry_run=False)
        assert (report.selected, report.reprocessed) == (2, 2)
        assert report.selected_by_pipeline == {"invoices": 2}
        assert report.other_pipelines == {"payments": 1}
        assert [letter.pipeline for letter in dlq.each(status="pending")] == ["payments"]

    def test_method_of_a_pipeline_is_that_pipeline(self, dlq, letters, pipeline_of):
        letters("invoices", 1)
        letters("payments", 9)
        assert dlq.replay(pipeline_of("invoices").reprocess).selected_by_pipeline == {"invoices": 1}

    def test_scheduled_replay_without_filter_is_safe(self, dlq, letters, pipeline_of):
        letters("payments", 9)
        report = dlq.replay(pipeline_of("invoices"), due=redrive.Schedule(first=0), dry_run=False)
        assert (report.selected, dlq.count(status="pending")) == (0, 1)

    @pytest.mark.parametrize("asked", [{"any_pipeline": True}, {"pipeline": ["invoices", "payments"]}])
    def test_accepts_foreign_letters_on_request(self, dlq, letters, pipeline_of, asked):
        letters("invoices", 1)
        letters("payments", 9)
        report = dlq.replay(pipeline_of("invoices"), **asked)
        assert report.selected_by_pipeline == {"invoices": 1, "payments": 1}
        assert report.other_pipelines == {}

    def test_rejects_a_foreign_letter_named_by_id(self, dlq, letters, pipeline_of):
        letters("payments", 9)
        (letter,) = dlq.each()
        with pytest.raises(redrive.LetterError, match=r"belong to other pipelines \(payments: 1\), not to 'invoices'"):
            dlq.replay(pipeline_of("invoices"), ids=[letter.id], dry_run=False)
        assert dlq.get(letter.id).status == "pending"


class TestFunctionAsTarget:
    @pytest.mark.parametrize("options", [{}, {"due": True}, {"status": "escalated"}, {"dry_run": False}])
    def test_replay_without_a_filter_is_rejected(self, dlq, letters, options):
        letters("payments", 9)
        with pytest.raises(redrive.LetterError, match="any_pipeline=True"):
            dlq.replay(Kept(), **options)

    def test_letters_of_several_pipelines_are_rejected(self, dlq, letters):
        letters("invoices", 1)
        letters("payments", 9)
        kept, cause = Kept(), dlq.causes()[0].fingerprint
        with pytest.raises(redrive.LetterError, match=r"2 pipelines \(invoices: 1, payments: 1\)"):
            dlq.replay(kept, cause=cause, dry_run=False)
        assert kept.records == []
        assert dlq.replay(kept, cause=cause, pipeline="payments", dry_run=False).reprocessed == 1
        assert dlq.replay(kept, cause=cause, any_pipeline=True, dry_run=False).reprocessed == 1
        assert kept.records == [9, 1]

    def test_function_of_a_pipeline_gets_its_letters(self, dlq, letters):
        letters("invoices", 1)
        letters("payments", 9)
        kept = Kept()
        kept.letters_pipeline = "payments"
        assert dlq.replay(kept, dry_run=False).reprocessed == 1
        assert kept.records == [9]


class TestCanary:
    def test_more_than_a_hundred_letters_are_preceded_by_ten(self, dlq, letters):
        letters("vendor", *range(101))
        kept = Kept(refuse={0})
        report = dlq.replay(kept, pipeline="vendor", dry_run=False)
        assert (report.canary, report.attempted, report.failed_again) == (10, 10, 1)
        assert "canary: 1 of the first 10 failed" in report.stopped
        assert "canary=0" in report.stopped
        assert dlq.count(status="pending") == 91

    def test_canary_that_passes_is_followed_by_the_rest(self, dlq, letters):
        letters("vendor", *range(101))
        kept = Kept()
        assert dlq.replay(kept, pipeline="vendor", dry_run=False).reprocessed == 101
        assert kept.sizes == [10, 91]

    @pytest.mark.parametrize(
        ("count", "options"),
        [(100, {}), (101, {"canary": 0}), (101, {"limit": 100}), (101, {"due": redrive.Schedule(first=0)})],
    )
    def test_canary_is_omitted_where_none_is_due(self, dlq, letters, count, options):
        letters("vendor", *range(count))
        report = dlq.replay(Kept(refuse={3}), pipeline="vendor", dry_run=False, **options)
        assert (report.canary, report.stopped, report.failed_again) == (None, None, 1)

    def test_dry_run_tries_every_letter(self, dlq, letters):
        letters("vendor", *range(101))
        report = dlq.replay(Kept(refuse={3}), pipeline="vendor")
        assert (report.attempted, report.failed_again, report.stopped) == (101, 1, None)


class TestRate:
    def test_batches_are_limited_to_one_second_of_letters(self, dlq, letters):
        letters("vendor", *range(9))
        kept = Kept()
        report = dlq.replay(kept, pipeline="vendor", rate=400, batch=4, dry_run=False)
        assert (report.reprocessed, kept.sizes) == (9, [4, 4, 1])

    @pytest.mark.parametrize(
        "rate", [0, -1, True, "fast", float("nan"), float("inf"), pytest.param(10**400, id="huge"), 1e-9]
    )
    def test_rate_must_be_a_positive_number(self, dlq, letters, rate):
        letters("vendor", 1)
        with pytest.raises(redrive.LetterError, match="rate must be a number of letters per second above 0"):
            dlq.replay(Kept(), pipeline="vendor", rate=rate, dry_run=False)
        assert dlq.count(status="pending") == 1

    @pytest.mark.parametrize(
        "lease", [0, -5, True, "long", float("nan"), float("inf"), 1e18, pytest.param(10**400, id="huge")]
    )
    def test_lease_must_be_a_year_at_most(self, dlq, letters, lease):
        letters("vendor", 1)
        with pytest.raises(
            redrive.LetterError, match="lease must be a number of seconds above 0 and at most 31,536,000"
        ):
            dlq.replay(Kept(), pipeline="vendor", lease=lease, dry_run=False)
        assert dlq.count(status="pending") == 1


class TestSuperseded:
    """Letters whose row a later run has written."""

    @pytest.fixture
    def one_superseded(self, store, dlq, letters):
        letters("vendor", 1, 2)
        first = next(dlq.each())

        def supersede(connection):
            statement = update(letters_table).where(letters_table.c.id == first.id)
            connection.execute(statement.values(superseded_at=dt.datetime.now(dt.UTC)))

        store.database.write(supersede)
        return first

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_is_counted_and_left_out(self, dlq, one_superseded, dry_run):
        report = dlq.replay(Kept(), pipeline="vendor", dry_run=dry_run)
        assert (report.selected, report.reprocessed, report.superseded) == (1, 1, 1)
        assert dlq.get(one_superseded.id).status == "pending"

    def test_is_omitted_when_named(self, dlq, one_superseded):
        report = dlq.replay(Kept(), ids=[one_superseded.id], dry_run=False)
        assert (report.selected, report.superseded) == (0, 1)

    def test_is_sent_on_request(self, dlq, one_superseded):
        report = dlq.replay(Kept(), pipeline="vendor", include_superseded=True, dry_run=False)
        assert (report.selected, report.reprocessed, report.superseded) == (2, 2, 0)

    def test_filter_selects_superseded_letters(self, dlq, one_superseded):
        assert [letter.id for letter in dlq.find(superseded=True)] == [one_superseded.id]
        assert dlq.count(superseded=False) == 1


class TestOrderOfUnknownKeys:
    """A record whose key only the validator knows may be the row of any other letter."""

    @pytest.fixture
    def fees(self, store, tmp_path):
        """A pipeline whose letters have no key, with letters of Monday and newer ones of Tuesday for the same rows."""
        file, fixed = tmp_path / "fees.csv", []

        def validate(record):
            if not fixed:
                raise ValueError("fee is not a number")
            return {"id": int(record["Order No"]), "day": record["day"]}

        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "fees", key="id", create=True)
        pipeline = redrive.Pipeline("fees", source=redrive.rows.csv(file), validate=validate, sink=sink, store=store)
        for day in ("monday", "tuesday"):
            file.write_text("Order No,day\n" + "".join(f"{number},{day}\n" for number in range(60)))
            pipeline.run()
        fixed.append(True)
        return pipeline

    def days(self, tmp_path):
        with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as connection:
            return dict(connection.execute("SELECT day, count(*) FROM fees GROUP BY day"))

    @pytest.mark.parametrize("options", [{}, {"canary": 5}, {"canary": 5, "batch": 3}, {"rate": 1e6}])
    def test_canary_sends_no_newer_letter_first(self, dlq, fees, tmp_path, options):
        report = dlq.replay(fees, dry_run=False, **options)
        assert report.reprocessed + report.superseded == 120
        assert self.days(tmp_path) == {"tuesday": 60}

    def test_letters_of_a_killed_replay_are_waited_for(self, store, dlq, fees, tmp_path):
        claims = Claims(store.dlq._database, lease=0.5)  # of a replay that was killed
        oldest = [letter.id for letter in dlq.each()][:10]
        store.dlq._database.write(lambda connection: claims.take(connection, oldest))
        assert dlq.replay(fees, dry_run=False, batch=30, lease=1).reprocessed == 120
        assert self.days(tmp_path) == {"tuesday": 60}

    def test_claims_of_a_running_replay_raise(self, store, dlq, fees, tmp_path):
        claims = Claims(store.dlq._database, lease=60)
        oldest = [letter.id for letter in dlq.each()][:10]
        store.dlq._database.write(lambda connection: claims.take(connection, oldest))
        with pytest.raises(redrive.LetterError, match="another replay has 10 of these letters in work"):
            dlq.replay(fees, dry_run=False, lease=0.1)
        assert dlq.count(status="pending") == 120
