"""Every filter of letters selects what a plain loop over all letters selects."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import redrive
from redrive.dlq.filters import Filter
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
        letters: dict[str, list[redrive.NewLetter]] = {"north": [], "south": []}
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
            letters[rng.choice(["north", "south"])].append(letter)
        for pipeline, new in letters.items():
            dlq.put_many(new, pipeline=pipeline)
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
    "source": (["a.csv", ("a.csv", "b.csv")], lambda one, value: one.source in _several(value)),
    "key": (["3", "nothing", ("3", "4", "nothing"), ()], lambda one, value: one.key in _several(value)),
    "position": (["line 1", ("line 0", "line 1")], lambda one, value: one.position in _several(value)),
    "since": (MOMENTS, lambda one, value: one.rejected_at >= value),
    "until": (MOMENTS, lambda one, value: one.rejected_at < value),
    "seen_since": (MOMENTS, lambda one, value: one.last_seen >= value),
    "text": (["FEE", "%"], lambda one, value: value.lower() in one.error_message.lower()),
    "note": (["vendor"], lambda one, value: value in (one.note or "").lower()),
    "min_seen": ([1, 2], lambda one, value: one.seen >= value),
    "attempts": ([2], lambda one, value: one.attempts == value),
    "reprocess_count": ([0, 1], lambda one, value: one.reprocess_count == value),
    "edited": ([True, False], lambda one, value: one.edited == value),
    "rejected_by": (["a.py:p", ("a.py:p", "b.py:p")], lambda one, value: one.target in _several(value)),
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
def test_every_selection_equals_a_plain_loop(dlq, seed):
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


HINTS = {name: str(hint) for name, hint in get_type_hints(Filter).items()}
SEVERAL = {name for name, hint in HINTS.items() if "tuple" in hint}
TWO: dict[str, list[Any]] = {
    "ids": [1, 2],
    "pipeline": ["north", "south"],
    "error_type": ["sink", "validation"],
    "status": ["discarded", "pending"],
    "source": ["a.csv", "b.csv"],
    "key": ["3", "4"],
    "position": ["line 0", "line 1"],
    "rejected_by": ["a.py:p", "b.py:p"],
}
"""Two values of each condition that takes several."""
NEVER: list[Any] = [object(), b"3", {"3": 1}, 3j, [[b"3"]], [None], [["3"]], ({},)]
"""What no condition takes."""
WRONG: dict[str, list[Any]] = {
    "bool": [True, [False]],
    "int": [3, 1.5],
    "str": ["3", ["3"], ("3", "4")],
    "datetime": [NOW],
}
"""Values of a type, which are wrong where a condition is not documented with it."""


class TestFilterOfSeveralValues:
    def test_is_every_filter_documented_with_a_tuple(self):
        assert set(TWO) == SEVERAL

    def test_selects_the_union_of_any_collection(self, dlq):
        fill(dlq, 1)
        for name, values in TWO.items():
            union = {one.id for value in values for one in dlq.each(**{name: value})}
            assert union
            for collection in (tuple, list, set, frozenset, iter):
                assert {one.id for one in dlq.each(**{name: collection(values)})} == union, (name, collection)

    @pytest.mark.parametrize("name", sorted(TWO))
    @pytest.mark.parametrize("empty", [(), [], set()], ids=repr)
    def test_selects_nothing_by_an_empty_collection(self, dlq, put, name, empty):
        put(2)
        assert dlq.count(**{name: empty}) == 0
        assert dlq.discard(note="x", **{name: empty}).changed == 0

    def test_takes_a_hundred_thousand_values(self, dlq, put):
        put(3)
        wanted = [f"D-{number}" for number in range(100_000)]
        for name, values in {
            "key": wanted,
            "source": ["deliveries.csv", *wanted],
            "pipeline": ["vendor", *wanted],
        }.items():
            assert dlq.count(**{name: values}) == 3, name

    def test_finds_masked_keys_and_positions(self, store_url):
        with redrive.connect(store_url, redact=["card"], store_redacted=True) as store:
            for card in ("4111111111111111", "4222222222222222", "4333333333333333"):
                store.dlq.put({"card": card}, "bad", pipeline="p", key=card, position=f"card {card}")
            cards = ("4111111111111111", "4333333333333333")
            assert store.dlq.count(key=cards) == 2
            assert store.dlq.count(position=[f"card {card}" for card in cards]) == 2
            assert store.dlq.discard(key=set(cards), note="x").changed == 2


class TestFilterOfAWrongType:
    @pytest.mark.parametrize("name", sorted(HINTS))
    def test_is_rejected(self, dlq, name):
        wrong = [value for kind, values in WRONG.items() if kind not in HINTS[name] for value in values]
        wrong += [] if name in SEVERAL else [["3"], ("2d",), [3]]
        for value in [*NEVER, *(one for one in wrong if not _is_text_of(name, one))]:
            with pytest.raises(redrive.LetterError):
                dlq.count(**{name: value})

    @pytest.mark.parametrize("name", ["pipeline", "error_type", "status", "text", "note", "run_id"])
    def test_is_rejected_for_a_number(self, dlq, name):
        with pytest.raises(redrive.LetterError):
            dlq.count(**{name: 12_345_678})

    @pytest.mark.parametrize("name", ["since", "until", "seen_since", "reprocessed_since"])
    def test_is_rejected_for_a_time_outside_the_calendar(self, dlq, name):
        east = dt.timezone(dt.timedelta(hours=5))
        for moment in (dt.datetime.min.replace(tzinfo=east), "0001-01-01T00:00:00+05:00"):
            with pytest.raises(redrive.LetterError, match="outside the years 1 to 9999"):
                dlq.count(**{name: moment})

    @pytest.mark.parametrize(
        "options",
        [
            {"limit": 1 << 70},
            {"after": "x"},
            {"after": -1},
            {"after": 1 << 70},
            {"max_record_chars": "x"},
            {"max_record_chars": 1 << 70},
        ],
        ids=repr,
    )
    def test_is_rejected_for_options_of_find(self, dlq, options):
        with pytest.raises(redrive.LetterError, match=next(iter(options))):
            dlq.find(**options)

    def test_is_rejected_for_an_id_of_audit_and_a_note(self, dlq, put):
        put(1)
        with pytest.raises(redrive.LetterError, match="id is a number"):
            dlq.audit("x")
        with pytest.raises(redrive.LetterError, match="note must be a text"):
            dlq.reopen(pipeline="vendor", note=5)


def _is_text_of(name: str, value: Any) -> bool:
    """Return whether a condition compares with the text of this value: a letter may be put with such a key."""
    return (
        name in ("key", "position", "source", "rejected_by")
        and isinstance(value, int | float | dt.datetime)
        and (not isinstance(value, bool))
    )
