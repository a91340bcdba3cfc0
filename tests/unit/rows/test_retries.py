"""Transient errors of reading, validate and transform are retried with their batch."""

from __future__ import annotations

import itertools
import signal
import sqlite3

import httpx
import polars as pl
import psycopg
import pydantic
import pytest

import redrive
from redrive.model.runs import BatchRetried, RunEnded

COUNT = 40


class Flaky:
    """Raises errors at its first calls, one at each."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


def rate_limited(seconds):
    response = httpx.Response(429, headers={"Retry-After": str(seconds)}, request=httpx.Request("GET", "http://x/"))
    return httpx.HTTPStatusError("429", request=response.request, response=response)


@pytest.fixture
def load(tmp_path):
    events = []

    def make(items=None, **options):
        return redrive.Pipeline(
            "load",
            source=redrive.rows.records(items or (lambda: ({"id": n} for n in range(COUNT)))),
            sink=redrive.rows.table(f"sqlite:///{tmp_path}/sink.db", "t", key="id", create=True),
            store=tmp_path / "store.db",
            on_event=events.append,
            **{"batch": 10, **options},
        )

    make.events = events
    make.table = lambda: sorted(row[0] for row in sqlite3.connect(tmp_path / "sink.db").execute("SELECT id FROM t"))
    return make


def retried(load):
    return [(event.step, event.retry) for event in load.events if isinstance(event, BatchRetried)]


TRANSIENT = [redrive.Transient("later"), ConnectionResetError("gone"), rate_limited(0)]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
class TestPrepare:
    """Errors of validate and transform."""

    def test_validate_is_called_again_with_the_batch(self, load, error):
        flaky = Flaky(error)
        report = load(validate=flaky).run()
        assert (report.status, report.written, report.rejected, report.retries) == ("complete", COUNT, 0, 1)
        assert retried(load) == [("prepare", 1)]
        assert load.table() == list(range(COUNT))

    def test_transform_is_called_again_with_the_batch(self, load, error):
        flaky = Flaky(error)
        report = load(transform=lambda record: flaky() or record).run()
        assert (report.written, report.rejected, report.retries) == (COUNT, 0, 1)

    def test_function_of_a_frame_is_called_again(self, load, error):
        flaky = Flaky(error)
        doubled = redrive.rows.per_frame(lambda frame: flaky() or frame.with_columns(v=pl.col("id") * 2))
        report = load(transform=doubled).run()
        assert (report.written, report.rejected, report.retries) == (COUNT, 0, 1)


class TestRead:
    """Errors of the iterator that gives the records."""

    def items(self, flaky, at):
        def made():
            for number in range(COUNT):
                if number == at:
                    flaky()
                yield {"id": number}

        return made

    @pytest.mark.parametrize("at", [0, 5, 10, 39])
    def test_function_is_called_again_without_lost_or_double_rows(self, load, at):
        rows = []
        report = load(
            self.items(Flaky(ConnectionResetError("gone"), TimeoutError("slow")), at),
            transform=lambda record: rows.append(record["id"]) or record,
        ).run()
        assert (report.status, report.read, report.retries) == ("complete", COUNT, 2)
        assert rows == list(range(COUNT))
        assert retried(load) == [("read", 1), ("read", 2)]

    def test_function_that_fails_when_called_is_called_again(self, load):
        flaky = Flaky(ConnectionRefusedError("not up yet"))
        report = load(lambda: flaky() or iter([{"id": 1}])).run()
        assert (report.read, report.retries) == (1, 1)

    def test_generator_cannot_be_retried_and_its_error_is_reported(self, load):
        pipeline = load(self.items(Flaky(ConnectionResetError("gone")), 25)())
        with pytest.raises(redrive.RunStopped, match="gone") as stopped:
            pipeline.run()
        assert (stopped.value.report.read, stopped.value.report.retries) == (25, 0)

    def test_permanent_error_is_not_retried(self, load):
        with pytest.raises(redrive.RunStopped, match="no access"):
            load(self.items(Flaky(PermissionError("no access")), 25)).run()
        assert retried(load) == []


class TestEnd:
    """Retries end: by patience, by their number, by a request to stop."""

    def test_error_is_raised_when_patience_is_exhausted(self, load):
        def down(record):
            raise ConnectionResetError("gone")

        pipeline = load(validate=down, patience=0.5)
        with pytest.raises(redrive.RunStopped, match="gone") as stopped:
            pipeline.run()
        assert (stopped.value.kind, stopped.value.report.status) == ("transient", "failed")
        assert stopped.value.report.retries == len(retried(load)) > 0
        pipeline = load(patience=0.5)
        assert pipeline.run().written == COUNT

    def test_zero_patience_means_no_retry(self, load):
        with pytest.raises(redrive.RunStopped):
            load(validate=Flaky(ConnectionResetError("gone")), patience=0).run()
        assert retried(load) == []

    def test_wait_longer_than_patience_is_not_started(self, load):
        with pytest.raises(redrive.RunStopped, match="429"):
            load(validate=Flaky(rate_limited(3_600))).run()
        assert retried(load) == []

    def test_stop_request_ends_the_wait(self, load):
        def down(record):
            pipeline.stop()
            raise ConnectionResetError("gone")

        pipeline = load(validate=down)
        with pytest.raises(redrive.RunStopped, match="stopped: it was asked to") as stopped:
            pipeline.run()
        assert stopped.value.report.status == "stopped"

    def test_ambiguous_error_is_retried_three_times(self, load):
        flaky = Flaky(*itertools.repeat(psycopg.errors.QueryCanceled("who knows"), 10))
        with pytest.raises(redrive.RunStopped, match="who knows"):
            load(validate=flaky).run()
        assert retried(load) == [("prepare", 1), ("prepare", 2), ("prepare", 3)]

    @pytest.mark.parametrize("wrong", [-1, "soon", float("nan")])
    def test_patience_is_a_number_of_seconds(self, load, wrong):
        with pytest.raises(ValueError, match="patience must be"):
            load(patience=wrong)


def over(*_):
    raise TimeoutError("job over its limit")


@pytest.fixture
def ring():
    """Let the handler of SIGALRM raise at the n-th call."""
    before = signal.signal(signal.SIGALRM, over)
    yield lambda at: at == 25 and signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


class TestSignalHandler:
    """What a signal handler raises ends the run and reaches its caller, whichever code it arrived in."""

    @staticmethod
    def frame(ring):
        def double(frame):
            ring(frame["id"].max() // 10 * 10 + 5)
            return frame

        return redrive.rows.per_frame(double)

    @pytest.mark.parametrize("step", ["source", "iterator", "validate", "model", "transform", "per_frame"])
    def test_limit_of_the_job_ends_the_run(self, load, ring, step):
        def items():
            for number in range(COUNT):
                if step in {"source", "iterator"}:
                    ring(number)
                yield {"id": number}

        class Order(pydantic.BaseModel):
            id: int

            @pydantic.field_validator("id")
            @classmethod
            def check(cls, value):
                ring(value)
                return value

        options = {
            "source": {},
            "iterator": {},
            "validate": {"validate": lambda record: ring(record["id"]) or None},
            "model": {"validate": Order},
            "transform": {"transform": lambda record: ring(record["id"]) or record},
            "per_frame": {"transform": self.frame(ring)},
        }[step]
        with pytest.raises(TimeoutError, match="job over its limit"):
            load(items() if step == "iterator" else items, **options).run()
        [ended] = [event.report for event in load.events if isinstance(event, RunEnded)]
        assert (ended.status, ended.reason, ended.rejected, ended.retries) == ("stopped", "interrupted", 0, 0)
        assert load.table() == list(range(ended.written))
        assert ended.written in {10, 20}
        if step != "iterator":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            report = load(items, **options).run()
            assert (report.resumed, load.table()) == (True, list(range(COUNT)))

    def test_limit_of_a_job_runner_ends_the_run(self, load):
        limit = type("SoftTimeLimitExceeded", (Exception,), {"__module__": "billiard.exceptions"})
        with pytest.raises(limit):
            load(validate=Flaky(limit())).run()
        assert load.events[-1].report.status == "stopped"

    def test_limit_of_the_job_ends_a_replay(self, load, tmp_path):
        with redrive.connect(tmp_path / "store.db") as store:
            store.dlq.put_many([redrive.NewLetter({"id": 1}, ValueError("bad"))], pipeline="load")
            before = signal.signal(signal.SIGALRM, over)
            try:
                with pytest.raises(TimeoutError, match="job over its limit"):
                    store.dlq.replay(lambda _: signal.raise_signal(signal.SIGALRM), pipeline="load", dry_run=False)
            finally:
                signal.signal(signal.SIGALRM, before)
            [letter] = store.dlq.find(pipeline="load")
            assert (letter.status, letter.attempts) == ("pending", 1)


def test_ctrl_c_that_a_lost_connection_replaces_ends_the_run(load):
    flaky = Flaky()

    def lookup(_):
        flaky()
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionResetError("closing failed")

    with pytest.raises((ConnectionResetError, redrive.RunStopped)):
        load(transform=lookup).run()
    assert flaky.calls == 1
