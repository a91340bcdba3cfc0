"""`redrive tasks backfill`: a flow for each value of a range."""

import json
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.cli.run import read_value
from redrive.tasks.backfill import combined, values_of

FLOW = """
import pathlib
import redrive

flow = redrive.Flow("days", params={"day": None, "region": "eu"})


@flow.task(in_thread=True, retry=None)
def work(day, region, idempotency_key):
    with open("ran", "a") as file:
        file.write(f"{day} {idempotency_key}\\n")
    if pathlib.Path(f"broken-{day}").exists():
        raise ConnectionError("down")
    if pathlib.Path(f"bad-{day}").exists():
        raise redrive.Permanent("bad")
    return day
"""


@pytest.fixture
def days(here, run):
    (here / "days.py").write_text(FLOW)

    def backfill(*words, file="days.py"):
        return run("tasks", "backfill", f"{file}:flow", *words)

    backfill.ran = lambda: [line.split() for line in (here / "ran").read_text().splitlines()]
    return backfill


class TestBackfill:
    def test_continues_after_a_failed_day_and_resumes_with_its_key(self, days, here):
        (here / "broken-2026-01-02").touch()
        answer = days("--param", "day=2026-01-01..2026-01-03", "--parallel", "2")
        assert answer.code == 75
        assert "days: 2 complete, 0 skipped because they were complete, 1 not complete, of 3 runs" in answer.err
        assert answer.err.endswith("backfill of flow 'days': 1 run not complete: day=2026-01-02 region=eu\n")
        (here / "broken-2026-01-02").unlink()
        answer = days("--param", "day=2026-01-01..2026-01-03", "--json")
        assert answer.code == 0
        runs = json.loads(answer.out)["runs"]
        assert [(one["params"]["day"], one["status"], one["skipped"]) for one in runs] == [
            ("2026-01-01", "complete", True),
            ("2026-01-02", "complete", False),
            ("2026-01-03", "complete", True),
        ]
        ran = days.ran()
        assert sorted(day for day, _ in ran) == ["2026-01-01", "2026-01-02", "2026-01-02", "2026-01-03"]
        assert len({key for _, key in ran}) == 3

    def test_exit_code_is_75_while_another_run_may_help(self, days, here):
        (here / "broken-1").touch()
        (here / "bad-2").touch()
        assert days("--param", "day=1..3").code == 75
        (here / "broken-1").unlink()
        assert days("--param", "day=1..3").code == 70  # only the dead letter is left

    def test_equal_values_are_run_once(self, days):
        answer = days("--param", "day=7,7, 7", "--param", "region=eu,eu", "--parallel", "2")
        assert (answer.code, [day for day, _ in days.ran()]) == (0, ["7"])
        assert "5 duplicates left out: equal parameters are run once\n" in answer.err
        assert answer.err.endswith("1 complete, 0 skipped because they were complete, 0 not complete, of 1 run\n")

    def test_complete_days_are_skipped_after_a_parameter_is_added(self, days, here):
        days("--param", "day=1..2")
        new = FLOW.replace('"region": "eu"', '"region": "eu", "currency": "EUR", "fee": 0')
        (here / "changed.py").write_text(new)
        foreseen = days("--param", "day=1..3", "--param", "currency=EUR,USD", "--dry-run", file="changed.py")
        assert foreseen.err.endswith("would make 4 runs, and skip 2 complete runs. Nothing was run.\n")
        assert days("--param", "day=1..3", file="changed.py").code == 0
        assert [day for day, _ in days.ran()] == ["1", "2", "3"]

    def test_dry_run_runs_nothing(self, days, here):
        answer = days("--param", "day=1..2", "--param", "region=eu,us", "--dry-run")
        assert (answer.code, (here / "ran").exists()) == (0, False)
        assert answer.err.endswith("would make 4 runs, and skip 0 complete runs. Nothing was run.\n")

    @pytest.mark.parametrize(
        ("param", "sentence"),
        [
            ("day", "--param is NAME=VALUES, such as day=2026-01-01..2026-01-31, not 'day'"),
            ("day=2026-01-03..2026-01-01", "--param day: the range '2026-01-03..2026-01-01' ends before it begins"),
            ("day=2026-02-28..2026-02-30", "--param day: '2026-02-28..2026-02-30' names a day that does not exist"),
            (
                "day=a..b",
                "--param day: a range is of days or of integers, 2026-01-01..2026-01-31, 1..12 or 01..12, not 'a..b'",
            ),
            (
                "day=1..012",
                "--param day: the ends of the range '1..012' are not written alike; write 1..12, or 01..12 for texts",
            ),
            ("dy=1..2", "flow 'days' has no parameter 'dy'; it has day, region"),
        ],
    )
    def test_wrong_range_is_answered_in_one_sentence(self, days, param, sentence):
        assert days("--param", param).sentence == sentence


class TestValues:
    @given(st.dates(date(2000, 1, 1), date(2100, 1, 1)), st.integers(0, 400))
    def test_days_of_a_range_follow_each_other(self, first, more):
        last = first + timedelta(days=more)
        found = values_of(f"{first}..{last}", str)
        assert [date.fromisoformat(day) for day in found] == [first + timedelta(days=n) for n in range(more + 1)]

    @given(st.integers(-1_000, 1_000), st.integers(0, 100))
    def test_integers_of_a_range_follow_each_other(self, first, more):
        assert values_of(f"{first}..{first + more}", str) == list(range(first, first + more + 1))

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("01..02", ["01", "02"]),
            ("08..11", ["08", "09", "10", "11"]),
            ("000..001", ["000", "001"]),
            ("0..2", [0, 1, 2]),
            ("10..12", [10, 11, 12]),
            ("-1..1", [-1, 0, 1]),
        ],
    )
    def test_range_has_values_of_the_type_of_its_first(self, text, values):
        assert values_of(text, read_value) == values
        assert values[:1] == values_of(text.partition("..")[0], read_value)

    @pytest.mark.parametrize("text", ["1..02", "01..100", "-01..05", "+1..3", "٠..٣"])
    def test_range_with_ends_of_different_forms_is_rejected(self, text):
        with pytest.raises(ValueError, match=r"not written alike|a range is of days or of integers"):
            values_of(text, read_value)

    def test_lists_and_single_values(self):
        assert values_of("eu, us", str) == ["eu", "us"]
        assert values_of("[1,2]", json.loads) == [[1, 2]]
        assert combined({"a": [1, 2], "b": ["x"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
        with pytest.raises(ValueError, match="20,000 combinations; a backfill takes up to 10,000"):
            combined({"a": range(200), "b": range(100)})
