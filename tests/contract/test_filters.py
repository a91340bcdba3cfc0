"""Every way to select letters gives the letters that a plain loop over all of them gives."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import redrive
from redrive.model.letters import Letter

NOW = dt.datetime.now(dt.UTC)
DAYS = dt.timedelta(days=1)
RUNS = ["7f0a7e3e-9d7c-4a51-8a5e-0d9b0f0a1b2c", "11111111-9d7c-4a51-8a5e-0d9b0f0a1b2c"]
STATUSES = ("pending", "escalated", "reprocessed", "discarded")
OPEN = {"pending", "escalated"}


def fill(dlq: Any, seed: int) -> None:
    """Put letters, decide about some of them, and let some records come again."""
    rng = random.Random(seed)
    for _ in range(2):
        for _ in range(90):
            letter = redrive.NewLetter(
                {"n": rng.randrange(3)},
                f"{rng.choice(['fee', 'zone', 'weight'])}: {rng.randrange(9)} is wrong",
                key=str(rng.randrange(40)),
                source=rng.choice(["a.csv", "b.csv"]),
                run_id=rng.choice([*RUNS, None]),
                error_type=rng.choice(["validation", "sink"]),
                attempts=rng.randrange(1, 3),
                position=f"line {rng.randrange(3)}",
                target=rng.choice(["a.py:p", "b.py:p", None]),
                rejected_at=NOW - rng.random() * 4 * DAYS,
            )
            dlq.put_many([letter], pipeline=rng.choice(["north", "south"]))
        for letter in list(dlq.each(status="open")):
            action = rng.choice(["discard", "escalate", "replay", "edit", "none", "none"])
            if action == "replay":
                outcome = rng.choice([None, "no"])
                dlq.replay(lambda records, outcome=outcome: [outcome], ids=[letter.id], dry_run=False)
            elif action == "edit":
                dlq.edit(letter.id, {"n": "edited"})
            elif action != "none" and (action == "discard" or letter.status == "pending"):
                getattr(dlq, action)(ids=[letter.id], note=rng.choice(["Vendor knows", "withdrawn"]))


MOMENTS = [NOW - 2 * DAYS, (NOW - DAYS).replace(minute=0, second=0, microsecond=0), NOW - DAYS / 7]

CHOICES: dict[str, tuple[list[Any], Callable[[Letter, Any], bool]]] = {
    "pipeline": (["north", ("north", "south"), "nobody"], lambda one, value: one.pipeline in _several(value)),
    "error_type": (["sink", ("sink", "validation")], lambda one, value: one.error_type in _several(value)),
    "status": (
        [*STATUSES, "open", "any", ("reprocessed", "open"), ("discarded", "pending")],
        lambda one, value: any(
            status == "any" or one.status in (OPEN if status == "open" else {status}) for status in _several(value)
        ),
    ),
    "run_id": ([RUNS[0], "1111"], lambda one, value: str(one.run_id).startswith(value)),
    "source": (["a.csv"], lambda one, value: one.source == value),
    "key": (["3", "nothing"], lambda one, value: one.key == value),
    "position": (["line 1"], lambda one, value: one.position == value),
    "since": (MOMENTS, lambda one, value: one.rejected_at >= value),
    "until": (MOMENTS, lambda one, value: one.rejected_at < value),
    "seen_since": (MOMENTS, lambda one, value: one.last_seen >= value),
    "text": (["FEE", "%"], lambda one, value: value.lower() in one.error_message.lower()),
    "note": (["vendor"], lambda one, value: value in (one.note or "").lower()),
    "min_seen": ([1, 2], lambda one, value: one.seen >= value),
    "attempts": ([2], lambda one, value: one.attempts == value),
    "reprocess_count": ([0, 1], lambda one, value: one.reprocess_count == value),
    "edited": ([True, False], lambda one, value: one.edited == value),
    "rejected_by": (["a.py:p"], lambda one, value: one.target == value),
    "superseded": ([False, True], lambda one, value: (one.superseded_at is not None) == value),
}


def _several(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def filters_of(seed: int) -> list[dict[str, Any]]:
    """One filter of each kind, and some of several."""
    rng = random.Random(seed)
    single = [{name: value} for name, (values, _) in CHOICES.items() for value in values]
    several = [
        {name: rng.choice(CHOICES[name][0]) for name in {*rng.sample(sorted(CHOICES), 2), *extra}}
        for extra in [["status"], ["status", "since"], ["status", "since", "until"], ["pipeline", "since"]] * 8
    ]
    return [{}, *single, *several]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_selection_is_that_of_a_plain_loop(dlq, seed):
    fill(dlq, seed)
    letters = list(dlq.each())
    assert {letter.status for letter in letters} == set(STATUSES)
    for filters in filters_of(seed):
        wanted = [one for one in letters if all(CHOICES[name][1](one, value) for name, value in filters.items())]
        ids = [one.id for one in wanted]
        assert [one.id for one in dlq.each(**filters)] == ids, filters
        assert [one.id for one in dlq.find(**filters, limit=1_000)] == ids[::-1], filters
        assert dlq.count(**filters) == len(ids), filters
        assert dlq.targets(**filters) == Counter(one.target for one in wanted), filters
        exported = [json.loads(line) for line in dlq.export(**filters)]
        assert [(one["source_key"], one["status"]) for one in exported] == [(one.key, one.status) for one in wanted]
        assert_causes(dlq, filters, wanted)
        without_status = {name: value for name, value in filters.items() if name != "status"}
        of_any_status = [
            one for one in letters if all(CHOICES[name][1](one, value) for name, value in without_status.items())
        ]
        assert dlq.count_by_status(**filters) == Counter(one.status for one in of_any_status), filters


def assert_causes(dlq: Any, filters: dict[str, Any], wanted: list[Letter]) -> None:
    causes = {cause.fingerprint: cause for cause in dlq.causes(**filters)}
    # Without a status, a cause that has only repeated itself in a span is listed, with no letters.
    counts = {fingerprint: cause.count for fingerprint, cause in causes.items() if cause.count}
    assert counts == Counter(one.fingerprint for one in wanted), filters
    for fingerprint in counts:
        cause, of_cause = causes[fingerprint], [one for one in wanted if one.fingerprint == fingerprint]
        by_status = {status: count for status, count in cause.by_status.items() if count}
        assert by_status == Counter(one.status for one in of_cause), filters
        assert set(cause.pipelines) >= {one.pipeline for one in of_cause}, filters
        if "status" in filters and not {"since", "until"} & filters.keys():
            assert set(cause.pipelines) == {one.pipeline for one in of_cause} or filters["status"] == "any", filters
