"""Causes are counted as letters change, to be fast; these tests compare the counts with the letters."""

import datetime as dt
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

import redrive
from redrive.model.letters import Status
from tests.support.examples import examples

UTC = dt.UTC
NOON = dt.datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
ERRORS = ["fee: not a number", "weight: missing", "zone: unknown"]


def truth(dlq, **filters):
    """The same numbers, counted letter by letter."""
    counts = Counter((letter.fingerprint, letter.status.value) for letter in dlq.each(**filters))
    return {
        cause: {status.value: counts[cause, status.value] for status in Status} for cause in {key[0] for key in counts}
    }


def told(dlq, **filters):
    return {
        cause.fingerprint: dict(cause.by_status) for cause in dlq.causes(**filters) if sum(cause.by_status.values())
    }


def test_33_cause_has_error_counts_times_and_pipelines(dlq, put):
    put(3, pipeline="a")
    put(2, pipeline="b")
    put(1, error="weight: 12 is missing")
    put(1, error="weight: 13 is missing", start=1)
    put(3, pipeline="a")  # seen again
    first, second = dlq.causes()
    assert (first.count, first.seen, first.pipelines) == (5, 8, ("a", "b"))
    assert first.by_status == {"pending": 5, "reprocessed": 0, "discarded": 0, "escalated": 0}
    assert (second.count, second.pipelines, second.error_type) == (2, ("vendor",), "validation")
    assert "12" not in second.message
    assert second.sample in {"weight: 12 is missing", "weight: 13 is missing"}
    assert first.first_seen <= first.last_seen
    assert first.trend == (0, 0, 0, 0, 0, 0, 8)
    assert [cause.fingerprint for cause in dlq.causes(limit=1)] == [first.fingerprint]


def test_cause_of_repeated_letters_has_recent_sightings(dlq):
    yesterday = dt.datetime.now(UTC) - dt.timedelta(days=1)
    dlq.put_many([redrive.NewLetter({}, "bad", key="k", rejected_at=yesterday)], pipeline="p")
    dlq.put_many([redrive.NewLetter({}, "bad", key="k")], pipeline="p")
    (cause,) = dlq.causes(since="1h")
    assert (cause.count, cause.seen) == (0, 1)


def test_causes_take_the_filters_of_letters(dlq, put):
    put(3, pipeline="a", run_id="7f0a7e3e-9d7c-4a51-8a5e-0d9b0f0a1b2c")
    put(2, pipeline="b", error_type="sink")
    put(1, error="weight: missing")
    dlq.discard(note="x", key="D-0", pipeline="a")
    for filters in (
        {"pipeline": "a"},
        {"error_type": "sink"},
        {"status": "discarded"},
        {"run_id": "7f0a7e3e-9d7c-4a51-8a5e-0d9b0f0a1b2c"},
        {"key": "D-1"},
        {"since": "today"},
        {"text": "weight"},
    ):
        counted = Counter(letter.fingerprint for letter in dlq.each(**filters))
        assert {cause.fingerprint: cause.count for cause in dlq.causes(**filters)} == counted, filters


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (NOON, None),
        (None, NOON),
        (NOON - dt.timedelta(minutes=61), None),
        (NOON - dt.timedelta(minutes=30), NOON + dt.timedelta(minutes=30)),
        (NOON + dt.timedelta(minutes=10), NOON + dt.timedelta(minutes=20)),
        (NOON - dt.timedelta(days=2), NOON + dt.timedelta(hours=1, seconds=1)),
        (NOON + dt.timedelta(minutes=20), NOON + dt.timedelta(minutes=10)),
    ],
)
def test_span_within_an_hour_is_counted_exactly(dlq, since, until):
    minutes = range(-3_000, 200, 7)
    dlq.put_many(
        (
            redrive.NewLetter({}, ERRORS[n % 3], key=str(n), rejected_at=NOON + dt.timedelta(minutes=n, seconds=n % 60))
            for n in minutes
        ),
        pipeline="p",
    )
    assert told(dlq, since=since, until=until) == truth(dlq, since=since, until=until)


letters_at = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 2), st.sampled_from(["a", "b"]), st.integers(-130, 130)),
    max_size=12,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), letters_at),
        st.tuples(st.just("discard"), st.integers(0, 12)),
        st.tuples(st.just("escalate"), st.integers(0, 12)),
        st.tuples(st.just("reopen"), st.integers(0, 12)),
        st.tuples(st.just("replay"), st.integers(0, 2)),
        st.tuples(st.just("purge"), st.integers(-130, 130)),
        st.tuples(st.just("by hand"), st.integers(0, 12)),
        st.tuples(st.just("import"), st.none()),
    ),
    max_size=12,
)


def take_step(store, kind, detail):
    dlq = store.dlq
    if kind == "put":
        for key, error, pipeline, minutes in detail:
            moment = NOON + dt.timedelta(minutes=minutes)
            letter = redrive.NewLetter({"m": minutes % 2}, ERRORS[error], key=str(key), rejected_at=moment)
            dlq.put_many([letter], pipeline=pipeline)
    elif kind in {"discard", "escalate", "reopen"}:
        getattr(dlq, kind)(note="n", key=str(detail))
    elif kind == "replay":
        dlq.replay(
            lambda records: [None if record["m"] else "no" for record in records],
            any_pipeline=True,
            limit=detail + 1,
            dry_run=False,
        )
    elif kind == "purge":
        dlq.purge(older_than=dt.datetime.now(UTC) + dt.timedelta(minutes=1))
    elif kind == "by hand":
        table = "pipeline.dead_letter_queue" if store.info().database == "postgresql" else "dead_letter_queue"
        change = text(f"UPDATE {table} SET status = 'discarded' WHERE source_key = :key AND status = 'escalated'")
        store.database.write(lambda connection: connection.execute(change, {"key": str(detail)}))
    else:
        lines = list(dlq.export())
        dlq.import_(lines)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(10))
@given(plan=steps)
def test_counts_are_exact_after_any_mix_of_changes(store, plan):
    dlq = store.dlq
    wipe(store)
    for kind, detail in plan:
        take_step(store, kind, detail)
        assert told(dlq) == truth(dlq)
    for span in ({"since": NOON}, {"until": NOON - dt.timedelta(minutes=5)}, {"since": NOON, "pipeline": "a"}):
        assert told(dlq, **span) == truth(dlq, **span)
    size = dlq.size()
    assert size.letters == dlq.count()
    assert size.by_status == {status.value: dlq.count(status=status.value) for status in Status}


def wipe(store):
    dlq = store.dlq
    dlq.discard(note="x", status=["pending", "escalated"])
    dlq.purge(older_than=dt.datetime.now(UTC) + dt.timedelta(minutes=1))
    assert dlq.count() == 0
    assert dlq.causes() == [] or all(cause.count == 0 for cause in dlq.causes())


def test_counts_are_exact_while_many_write_at_once(dlq, put):
    put(200)
    errors = []

    def work(number):
        try:
            for turn in range(5):
                put(40, start=turn * 20, error=ERRORS[number % 3], pipeline=f"p{number % 2}")
                dlq.discard(note="x", key=f"D-{turn}")
                dlq.replay(
                    lambda records: [None, "no"] * (len(records) // 2) + [None] * (len(records) % 2),
                    any_pipeline=True,
                    limit=15,
                    batch=7,
                    dry_run=False,
                )
                dlq.reopen(status="escalated", pipeline="vendor")
                dlq.purge(older_than=dt.timedelta(0), pipeline="p1")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert told(dlq) == truth(dlq)


def test_counts_follow_letters_deleted_by_sql(store, dlq, put):
    put(3)

    def remove(connection):
        on_postgres = connection.dialect.name == "postgresql"
        connection.exec_driver_sql(
            "TRUNCATE pipeline.dead_letter_queue" if on_postgres else "DELETE FROM dead_letter_queue"
        )

    store.database.write(remove)
    assert (dlq.causes(status="open"), dlq.size().letters) == ([], 0)
    put(2)
    assert [cause.count for cause in dlq.causes(status="open")] == [2]


def test_letter_decided_by_sql_is_purged_after_retention(store, dlq, put):
    put(1)

    def discard(connection):
        schema = "pipeline." if connection.dialect.name == "postgresql" else ""
        connection.exec_driver_sql(f"UPDATE {schema}dead_letter_queue SET status = 'discarded'")

    store.database.write(discard)
    assert dlq.purge(older_than="30d").letters == 0  # its retention begins with the first purge that finds it
    assert dlq.purge(older_than=dt.datetime.now(UTC) + dt.timedelta(minutes=1)).letters == 1
