"""`redrive simulate herd`: rows in a pipe, a table and charts on a terminal, errors in one sentence."""

import inspect
import json
from dataclasses import fields

import pytest

from redrive.cli.simulate.herd import herd
from redrive.simulate.herd.simulation import Scenario

HERD = ("simulate", "herd")
SMALL = (*HERD, "--clients", "60", "--every", "12", "--latency", "5", "--outage", "40", "--watch", "60")
STRATEGIES = [
    "redrive's default policy",
    "its cool-down not jittered",
    "exponential, not jittered",
    "fixed 30 s",
]
VENDOR = """
import redrive

print("loading")
shipfast = redrive.Service("shipfast", retry=None, breaker=redrive.Breaker(failures=1, jitter=0.0))
bare = redrive.Service("bare", breaker=None)
slow = redrive.Service("slow", timeout=2.0)
number = 7
"""


@pytest.fixture
def vendor(here):
    (here / "vendor.py").write_text(VENDOR)


def test_json_has_a_row_per_strategy_with_its_time_series(run):
    rows = json.loads(run(*SMALL, "--json").out)
    assert [one["strategy"] for one in rows] == STRATEGIES
    for one in rows:
        series = one.pop("series")
        assert [*one] == [
            *("strategy", "normal_per_s", "peak_per_s", "peak_ratio", "peak_at_s", "peak_while_down_per_s"),
            *("recovered_after_s", "requests", "in_vain", "calls_failed", "lost", "probes_per_s"),
        ]
        assert (one["normal_per_s"], series["from_s"], series["bucket_s"]) == (5, -60, 1)
        back = 60 + 40
        assert len(series["requests_per_s"]) == len(series["probes_per_s"]) == back + 60
        assert one["peak_per_s"] == max(series["requests_per_s"][back:])
        assert one["peak_while_down_per_s"] == max(series["requests_per_s"][60:back])
        assert one["requests"] == sum(series["requests_per_s"][60:])
        assert one["calls_failed"] == sum(series["calls_failed_per_s"])
        assert one["probes_per_s"] == max(series["probes_per_s"])
        assert one["peak_ratio"] == pytest.approx(one["peak_per_s"] / 5, abs=1e-3)


def test_pipe_gets_the_same_rows_and_nothing_else(run):
    documents, plain = json.loads(run(*SMALL, "--json").out), run(*SMALL)
    titles, *rows = [line.split("\t") for line in plain.out.splitlines()]
    assert titles == [name for name in documents[0] if name != "series"]
    assert rows == [["" if one[name] is None else str(one[name]) for name in titles] for one in documents]
    assert plain.err == ""


def test_seed_determines_the_result(run):
    assert run(*SMALL).out == run(*SMALL, "--seed", 1).out != run(*SMALL, "--seed", 2).out


def test_default_options_are_those_of_the_model():
    renamed = {"kind": "outage_kind"}
    options = inspect.signature(herd).parameters
    for one in fields(Scenario):
        assert options[renamed.get(one.name, one.name)].default == one.default


def test_users_policy_is_imported_and_its_output_is_no_data(run, vendor):
    found = run(*SMALL, "--policy", "vendor.py:shipfast", "--fixed", 10)
    assert [row[0] for row in found.rows] == ["vendor.py:shipfast", STRATEGIES[2], "fixed 10 s"]
    assert found.err == "loading\n"
    probes = [float(row[-1]) for row in found.rows]
    assert probes[0] > 0 == probes[1] == probes[2]


def test_policy_without_a_breaker_sends_no_probes(run, vendor):
    assert [row[-1] for row in run(*SMALL, "--policy", "vendor.py:bare").rows] == ["0.0"] * 3


def test_retry_after_of_a_503_is_respected_by_the_policy(run):
    """A client does not return before the wait that it was asked for."""
    found = run(*SMALL, "--outage-kind", "503", "--retry-after", 25, "--json")
    requests = json.loads(found.out)[0]["series"]["requests_per_s"]
    assert sum(requests[60 + 13 : 60 + 25]) < sum(requests[60:73]) / 2


def test_terminal_shows_premises_table_conclusion_and_charts(terminal):
    said = terminal(*SMALL, "--repetitions", 2, "--outage-kind", "503", "--retry-after", 9, columns=150)
    assert said.code == 0
    assert "60 clients, each with a call every 12 s that takes 5 s: 5 requests/s, 25 under way" in said.out
    assert "takes up 10 requests/s, 50 may wait; it answers 503 for 40 s; a 503 asks for 9.0 s" in said.out
    assert "the worst of 2 repetitions, seed 1" in said.out
    assert "once it is back, the service meets " in said.out
    assert "while it is down, up to " in said.out
    for name in STRATEGIES:
        assert name in said.out
    assert said.out.count("● redrive's default policy   ○ its cool-down not jittered") == 2


def test_narrow_terminal_shows_the_most_important_columns(terminal):
    said = terminal(*SMALL, columns=60).out
    assert "peak/s" in said
    assert "× normal" in said
    assert "in vain" not in said
    assert max(map(len, said.split("strategy")[1].split("once it is back")[0].splitlines())) <= 60


@pytest.mark.slow
def test_charts_are_drawn_into_a_file(run, here):
    found = run(*SMALL, "--plot", "herd.svg")
    assert found.err == "wrote the charts to herd.svg\n"
    assert "seconds since the service went down" in (here / "herd.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clients", "0"], "clients must be a whole number of 1 or more, not 0"),
        (["--clients", "-5"], "clients must be a whole number of 1 or more, not -5"),
        (["--clients", "x"], "invalid value for '--clients': "),
        (["--outage", "nan"], "outage must be a finite number of seconds above 0, not nan"),
        (["--outage-kind", "flood"], "the kind of outage must be one of refused, 503, hang, not 'flood'"),
        (["--retry-after", "0"], "Retry-After must be a whole number of 1 or more, not 0"),
        (["--capacity", "1"], "capacity must be above the normal rate of 166.7 requests a second, not 1.0"),
        (["--repetitions", "0"], "repetitions must be a whole number of 1 or more, not 0"),
        (["--plot", "herd.txt"], "herd.txt must end in .png or .svg"),
        (["--policy", "vendor.py:number"], "vendor.py:number is of type int, not a redrive.Service"),
        (["--policy", "vendor.py:slow"], "vendor.py:slow ends an attempt after 2 seconds"),
        (["--policy", "vendor.py:shipfsat"], "vendor.py has no name 'shipfsat'; did you mean 'shipfast'?"),
        (["--policy", "nowhere.py:x"], "there is no file nowhere.py"),
    ],
)
def test_invalid_options_are_rejected_in_a_sentence(run, vendor, words, said):
    answer = run(*HERD, *words)
    assert answer.code == 64
    assert answer.out == ""
    sentence = answer.err.splitlines()[-1]
    assert sentence.startswith(f"redrive: {said}")
    assert "Traceback" not in answer.err
