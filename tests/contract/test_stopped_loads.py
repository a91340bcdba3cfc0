"""A load that is stopped anywhere and run again leaves the same table as a loader of single rows."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive
from tests.oracles.table_modes import REFUSED, UNFIT, Change, load
from tests.support.examples import examples
from tests.support.stores import NewStore
from tests.support.table_places import PLACES, place_of

WAYS = ({}, {"deletions": True}, {"on_conflict": "ignore"})
MODES = [{"rule": rule, **way} for rule in ("last", "first", "quarantine") for way in WAYS]
MODES += [{"newer": True}, {"newer": True, "deletions": True}]
STEPS = ("before the rows", "behind the rows", "before the letters", "behind the letters")


class Killed(BaseException):
    """Ends a run as nothing that a pipeline expects does."""


class Stops:
    """Ends a run at a step of the batch with a number, and once: what follows is the run that is resumed."""

    def __init__(self, step: str, number: int, error: BaseException) -> None:
        self._step, self._number, self._error = step, number, error
        self._counts = itertools.count()

    def around(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        def stopping(*args: Any, **options: Any) -> Any:
            self._reach(f"before the {what}")
            outcome = function(*args, **options)
            self._reach(f"behind the {what}")
            return outcome

        return stopping

    def _reach(self, step: str) -> None:
        if step == self._step and next(self._counts) == self._number:
            raise self._error


class Place:
    """A table, and pipelines into it that are stopped."""

    def __init__(self, store: redrive.Store, url: str, sql: Callable[..., Any]) -> None:
        self.store, self.url, self.sql = store, url, sql
        self._runs = itertools.count()
        sql(f"CREATE TABLE t (id integer PRIMARY KEY, v text CHECK (v <> '{REFUSED}'), seq integer)")

    def fill(self, rows: dict[int, tuple[str, int | None]]) -> None:
        self.sql("DELETE FROM t")
        for key, (value, moment) in rows.items():
            self.sql(f"INSERT INTO t VALUES ({key}, '{value}', {'NULL' if moment is None else moment})")

    def load(self, changes: list[Change], batch: int, stops: Stops, mode: dict[str, Any]) -> None:
        """Run to the end, and once more where the run was stopped."""
        name = f"load-{next(self._runs)}"
        records = [{"id": one.key, "v": one.value, "seq": one.moment, "gone": one.deletes} for one in changes]
        put_within = type(self.store.dlq).put_within.__get__(self.store.dlq)
        self.store.dlq.put_within = stops.around(put_within, "letters")
        for _ in range(2):
            pipeline = self.pipeline(name, records, batch, stops, mode)
            try:
                report = pipeline.run()
            except (redrive.RunStopped, Killed):
                continue
            assert report.read == report.written + report.rejected + report.discarded + report.duplicates
            return
        raise AssertionError("it never ended")

    def pipeline(
        self, name: str, records: list[Any], batch: int, stops: Stops, mode: dict[str, Any]
    ) -> redrive.Pipeline:
        deletions = mode.get("deletions")

        def check(record: dict[str, Any]) -> dict[str, Any]:
            if record["v"] == UNFIT:
                raise ValueError(UNFIT)
            return record if deletions else {name: value for name, value in record.items() if name != "gone"}

        options = {"newer": "seq"} if mode.get("newer") else {"on_conflict": mode.get("on_conflict", "update")}
        sink = redrive.rows.table(self.url, "t", key="id", **options, **({"delete_when": "gone"} if deletions else {}))
        for step in {"write", "write_within"} & set(dir(sink)):
            setattr(sink, step, stops.around(getattr(sink, step), "rows"))
        return redrive.Pipeline(
            name,
            source=redrive.rows.records(records, name="in"),
            validate=check,
            sink=sink,
            on_duplicate=mode.get("rule", "last"),
            batch=batch,
            gate=redrive.Gate(abort=1),
            store=self.store,
        )

    def rows(self) -> dict[int, tuple[str, int | None]]:
        return {key: (value, moment) for key, value, moment in self.sql("SELECT id, v, seq FROM t")}


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest, new_store: NewStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Place]:
    caplog.set_level(logging.CRITICAL, "redrive")  # hundreds of runs with rejected rows
    with place_of(request.param, new_store, tmp_path) as parts:
        yield Place(*parts)


moments = st.none() | st.integers(0, 4)
values = st.sampled_from(["a", "b", "c", UNFIT, REFUSED])
changes_of_few_keys = st.lists(
    st.builds(Change, st.integers(1, 3), values, moments, st.booleans()), min_size=1, max_size=9
)
tables = st.dictionaries(st.integers(1, 4), st.tuples(st.just("old"), moments), max_size=3)
errors = st.sampled_from([redrive.StoreError("gone"), Killed()])


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    table=tables,
    changes=changes_of_few_keys,
    batch=st.integers(1, 9),
    mode=st.sampled_from(MODES),
    step=st.sampled_from(STEPS),
    number=st.integers(0, 4),
    error=errors,
)
def test_stopped_load_ends_as_row_by_row_loader_does(place, table, changes, batch, mode, step, number, error):
    place.fill(table)
    place.load(changes, batch, Stops(step, number, error), mode)
    assert place.rows() == load(table, changes, **mode)
