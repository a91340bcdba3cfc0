"""`redrive simulate contention`: rows in a pipe, a table and charts on a terminal, errors in one sentence."""

import json

import pytest

SMALL = ("simulate", "contention", "--clients", "5,20", "--repetitions", "3")
STRATEGIES = ["none", "exponential", "equal", "full", "decorrelated"]


def test_json_has_a_row_per_number_of_clients_and_strategy(run):
    rows = json.loads(run(*SMALL, "--json").out)
    assert [(one["clients"], one["strategy"]) for one in rows] == [(n, name) for n in (5, 20) for name in STRATEGIES]
    for one in rows:
        assert one["repetitions"] == 3
        for name in ("time_ms", "writes"):
            assert one[f"{name}_least"] <= one[name] <= one[f"{name}_p95"] == one[f"{name}_most"]
            assert one[f"{name}_error"] >= 0
    assert [one["writes_ratio"] for one in rows if one["strategy"] == "exponential"] == [1, 1]
    assert rows[-1]["time_ratio"] == pytest.approx(rows[-1]["time_ms"] / rows[-4]["time_ms"], abs=1e-4)


def test_pipe_gets_the_same_rows_and_nothing_else(run):
    documents, plain = json.loads(run(*SMALL, "--json").out), run(*SMALL)
    titles, *rows = [line.split("\t") for line in plain.out.splitlines()]
    assert titles == [*documents[0]]
    assert rows == [[str(value) for value in one.values()] for one in documents]
    assert plain.err == ""


def test_ratio_is_empty_without_the_ramp(run):
    (row,) = json.loads(run(*SMALL[:2], "--clients", 4, "--repetitions", 1, "--strategy", "full", "--json").out)
    assert (row["time_ratio"], row["writes_ratio"], row["time_ms_error"]) == (None, None, None)


def test_client_numbers_and_strategies_can_be_chosen(run):
    options = ("--clients", "5, 20", "--clients", 5, "--clients", 7, "--strategy", "full", "--strategy", "none")
    rows = run("simulate", "contention", *options, "--repetitions", 1).rows
    assert [(row[1], row[0]) for row in rows] == [(n, name) for n in ("5", "20", "7") for name in ("full", "none")]


def test_seed_determines_the_result(run):
    assert run(*SMALL).out == run(*SMALL).out == run(*SMALL, "--seed", 1).out != run(*SMALL, "--seed", 2).out


def test_options_are_in_seconds(run):
    """Four hops of a quarter of a second, and no other client."""
    found = run(*SMALL[:2], "--clients", 1, "--hop", 0.25, "--deviation", 0, "--repetitions", 1, "--json")
    assert [one["time_ms"] for one in json.loads(found.out)] == [1_000] * 5


def test_terminal_shows_premises_table_conclusion_and_charts(terminal):
    said = terminal(*SMALL, columns=90)
    assert said.code == 0
    assert "a hop takes |normal(10, 2)| ms; waits begin at 5 ms and end at 2,000 ms" in said.out
    assert "means of 3 repetitions, seed 1" in said.out
    assert "with 20 clients, none finishes first, after " in said.out
    assert said.out.count("● none   ○ exponential   ▲ equal   □ full   ◆ decorrelated") == 2


def test_single_number_of_clients_makes_no_chart(terminal):
    said = terminal(*SMALL[:2], "--clients", 5, "--repetitions", 1)
    assert "decorrelated" in said.out
    assert "completion time" not in said.out


def test_ascii_terminal_gets_no_escapes(terminal):
    said = terminal(*SMALL, columns=60, PYTHONIOENCODING="ascii")
    assert "* none   o exponential   x equal   # full   @ decorrelated" in said.out


@pytest.mark.slow
def test_charts_are_written_as_an_image_and_rows_are_unchanged(run, here):
    said = run(*SMALL, "--plot", "contention.svg")
    assert "completion time" in (here / "contention.svg").read_text()
    assert said.err == "wrote the charts to contention.svg\n"
    assert said.out == run(*SMALL).out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--clients", "0"), "clients must be a whole number of 1 or more, not 0"),
        (("--clients", "-5"), "clients must be a whole number of 1 or more, not -5"),
        (("--clients", "x"), "--clients is a whole number, or several as 10,50,100, not 'x'"),
        (("--clients", "10,,20"), "--clients is a whole number, or several as 10,50,100, not '10,,20'"),
        (("--clients", "1.5"), "--clients is a whole number, or several as 10,50,100, not '1.5'"),
        (("--clients", "9" * 5_000), "--clients is a whole number, or several as 10,50,100, not '999"),
        (("--clients", "2000000"), "clients must be 1,000,000 or fewer, not 2,000,000"),
        (("--repetitions", "0"), "repetitions must be a whole number of 1 or more, not 0"),
        (("--repetitions", "many"), "invalid value for '--repetitions'"),
        (("--strategy", "jittered"), "there is no strategy 'jittered'; there are none, exponential, equal, full, dec"),
        (("--base", "nan"), "base must be a finite number of seconds above 0, not nan"),
        (("--base", "3"), "cap must be no less than base, 3 seconds, not 2"),
        (("--cap", "inf"), "cap must be a finite number of seconds above 0, not inf"),
        (("--hop", "-1"), "hop must be a finite number of seconds above 0, not -1.0"),
        (("--deviation", "-0.1"), "deviation must be a finite number of seconds of 0 or more, not -0.1"),
        (("--seed", "one"), "invalid value for '--seed'"),
        (("--plot", "out.pdf"), "out.pdf must end in .png or .svg"),
        (("--plot", "nowhere/out.svg"), "nowhere/out.svg cannot be written: there is no directory nowhere"),
    ],
)
def test_invalid_options_are_rejected_in_one_sentence(run, options, said):
    answer = run(*(SMALL[:2] if options[0] in SMALL else SMALL), *options)
    assert (answer.code, answer.out) == (64, "")
    assert answer.sentence.startswith(said)
    assert len(answer.sentence) < 300


def test_hours_of_work_need_confirmation(run):
    answer = run("simulate", "contention", "--clients", "1000,100000", "--strategy", "none", "--repetitions", 1)
    assert (answer.code, answer.out) == (64, "")
    assert answer.sentence == (
        "this takes about 1.5 billion writes, some 2 h, and 1.5 billion of them are for 100,000 clients with "
        "'none'; ask for less with --clients, --repetitions or --strategy, or pass --yes"
    )


def test_invalid_image_path_is_rejected_before_the_work(run, here):
    """Hours of work: the first error shows which option is checked first."""
    answer = run("simulate", "contention", "--clients", 100_000, "--plot", "out.gif")
    assert answer.sentence.startswith("out.gif must end in .png or .svg")


def test_equal_strategies_give_no_conclusion(terminal):
    said = terminal(*SMALL[:2], "--clients", 1, "--repetitions", 1)
    assert "decorrelated" in said.out
    assert "fewest writes" not in said.out
