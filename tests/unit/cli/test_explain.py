"""`redrive explain`: errors, codes, tracebacks and policies, each explained or rejected in one sentence."""

import json
import subprocess
import sys

import pytest

from redrive.cli.explain import command
from tests.support.warm_python import warm_python

VENDOR = """
import redrive

class BankDown(Exception):
    def __init__(self, code, branch):
        super().__init__(code)

shipfast = redrive.Service(
    "shipfast",
    retry=redrive.Retry(attempts=4, base=2.0, cap=30.0),
    credentials=redrive.KeyPool(["key-of-the-north-a1b2", "key-of-the-south-c3d4"]),
    classifier=redrive.Classifier().rule(BankDown, kind="transient"),
    timeout=10.0,
)
patient = redrive.Retry(attempts=3, base=5.0, cap=30.0)
breaker = redrive.Breaker(failures=3)
flow = redrive.Flow("settlement")
one = BankDown(7, "north")
number = 17

@flow.task
def settle(): ...

@shipfast
def fetch(): ...

print("imported")
"""


@pytest.fixture
def vendor(here):
    (here / "vendor.py").write_text(VENDOR)


@pytest.fixture
def facts(run):
    """Ask, and get the facts by their names."""

    def facts(*words, input=None):
        answer = run("explain", *words, input=input)
        assert answer.code == 0, answer.err
        return dict(reversed(answer.rows))

    return facts


def test_status_is_explained(facts):
    found = facts("503")
    assert found["read as"] == "HTTP status 503"
    assert found["kind"] == "transient"
    assert found["rule"] == "http.503, built in"
    assert found["in a call"].startswith("retried up to 4 times over 0.0 s to 15.0 s (7.5 s on average)")
    assert found["breaker"].startswith("counted: 5 within 60 s")
    assert found["to change it"] == 'redrive.Classifier().rule(status=503, kind="permanent")'


def test_post_is_explained_differently(facts):
    assert facts("503", "--method", "post")["in a call"].startswith("not retried: a POST without an Idempotency-Key")
    assert facts("429", "--method", "POST")["in a call"].startswith("retried up to 4 times")


def test_effects_of_databases_and_mails_are_shown(facts):
    for error in ("psycopg.OperationalError", "smtplib.SMTPServerDisconnected"):
        assert facts(error)["effects"].startswith(
            "not retried where a commit, a statement in autocommit mode or a mail"
        )
    assert "effects" not in facts("503")
    assert "effects" not in facts("psycopg.OperationalError", "--scope", "row")


def test_response_details_count(facts):
    assert "120.0 s to 180.0 s" in facts("429", "--retry-after", "30")["in a call"]
    assert facts("403", "--body", "quotaExceeded")["kind"] == "quota"


def test_one_scope_is_shown_on_request(facts):
    found = facts("ValueError", "--scope", "row")
    assert found["kind"] == "row"
    assert "in a row" in found
    assert "in a call" not in found
    assert "breaker" not in found
    assert facts("ValueError")["in a task"].startswith("ambiguous: RETRYING")


def test_several_questions_are_a_table(run):
    answer = run("explain", "503", "HTTP", "429", "SQLSTATE", "40P01", "ReadTimeout")
    assert answer.out.splitlines()[0].split("\t") == [
        *("what", "read_as", "kind", "in_a_row", "in_a_task", "rule", "reason")
    ]
    assert [(row[0], row[2]) for row in answer.rows] == [
        ("503", "transient"),
        ("HTTP 429", "rate_limited"),
        ("SQLSTATE 40P01", "retry_now"),
        *[("ReadTimeout", "transient")] * 4,
    ]


def test_users_class_needs_no_arguments_and_its_rule_is_named(facts, vendor):
    assert facts("vendor.py:BankDown")["rule"] == "unknown, built in"
    found = facts("vendor.py:BankDown", "--policy", "vendor.py:shipfast")
    assert (found["kind"], found["rule"]) == ("transient", "rule(BankDown), of shipfast")
    assert "if an attempt takes 10.0 s" in found["in a call"]
    assert facts("vendor.BankDown")["read as"] == "exception vendor.BankDown"
    assert facts("vendor.py:one")["detail"] == "7"


def test_policy_is_explained(facts, vendor):
    found = facts("vendor.py:shipfast", "--sla", "45s")
    assert found["fails at once"].startswith("over after 0.0 s at best, 7.0 s on average, 14.0 s at worst")
    assert found["times out"].startswith("over after 40.0 s at best, 47.0 s on average, 54.0 s at worst")
    assert found["times out"].endswith("within the SLA of 45 s at best")
    assert found["to fit the SLA"] == "attempts=3, or within=35, or timeout=7.7"
    assert found["attempt 4"] == "30.0,37.0,44.0"


def test_keys_are_shown_by_their_last_four_characters(run, vendor):
    answer = run("explain", "vendor.py:shipfast")
    assert "…a1b2, …c3d4" in answer.out
    assert "key-of-the" not in answer.out + answer.err


def test_part_of_a_policy_is_explained_alone(facts, vendor):
    assert "breaker" not in facts("vendor.py:patient")
    assert facts("vendor.py:breaker").keys() == {"policy", "breaker"}


def test_output_of_an_imported_module_is_no_result(run, vendor):
    answer = run("explain", "vendor.py:patient")
    assert "imported" not in answer.out
    assert "imported" in answer.err


def test_policy_has_a_table_of_its_attempts_on_a_terminal(terminal, vendor):
    answer = terminal("explain", "vendor.py:shipfast", columns=110)
    assert "attempt  wait before it" in answer.out
    assert "4  0.0 s to 8.0 s" in answer.out


def test_document_has_a_stable_shape(run, vendor):
    error, policy = json.loads(run("explain", "503", "vendor.py:shipfast", "--json").out)
    assert list(error) == [
        *("about", "what", "read_as", "note", "scope", "kind", "reason", "rule", "built_in", "detail", "status"),
        *("retry_after", "does", "policy", "attempts", "ends", "counts_against_breaker", "opens_circuit", "seconds"),
        *("sla", "fits", "alerts", "advice", "change"),
    ]
    assert error["seconds"] == {"best": 0.0, "mean": 7.5, "worst": 15.0}
    assert list(policy) == [
        *("about", "policy", "retry", "breaker", "budget", "credentials", "effects", "rules", "timeout", "sla"),
        *("attempts", "at_once", "timed_out", "notes", "changes"),
    ]
    assert policy["attempts"][1] == {
        "attempt": 2,
        "wait": {"best": 0.0, "mean": 1.0, "worst": 2.0},
        "at": {"best": 10.0, "mean": 11.0, "worst": 12.0},
        "chance": 1.0,
    }


# ── tracebacks ────────────────────────────────────────────────────────────────────────────────────────────────────────

TRACEBACK = """Traceback (most recent call last):
  File "job.py", line 3, in <module>
    load("https://user:hunter22@bank.example/rates?api_key=abcdef123456")
httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://user:hunter22@bank.example/?api_key=abcdef123456'
"""


def test_traceback_is_read_from_a_pipe(facts):
    for words in ((), ("-",)):
        found = facts(*words, input=TRACEBACK)
        assert (found["asked"], found["rule"]) == ("httpx.HTTPStatusError", "http.404, built in")


def test_secrets_of_a_traceback_are_masked(run):
    for words in ((), ("--json",)):
        answer = run("explain", *words, input=TRACEBACK.replace("Client error '404 Not Found'", "no"))
        assert "bank.example" in answer.out
        assert "hunter22" not in answer.out
        assert "abcdef123456" not in answer.out


def test_log_line_is_read(facts):
    assert facts("KeyError: 'fee'")["kind"] == "permanent"


@pytest.mark.process
def test_output_of_a_program_can_be_piped(here):
    program = subprocess.run([sys.executable, "-c", "open('/nowhere')"], capture_output=True, text=True, check=False)
    asked = subprocess.run(
        warm_python("-W", "error", "-m", "redrive.cli", "explain"),
        input=program.stderr,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert "errno.ENOENT, built in" in asked.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "stdin is empty"),
        (b" \n\t\n", "stdin is empty"),
        (b"all went well\n", "there is no traceback on stdin"),
        (b"\x7fELF\x00\x01\x02", "stdin is not text"),
        (b"\xff\xfe\xfd", "there is no traceback on stdin"),
    ],
)
def test_invalid_stdin_is_rejected_in_a_sentence(run, given, said):
    answer = run("explain", input=given)
    assert answer.code == 64
    assert answer.sentence.startswith(said)


def test_endless_stdin_is_rejected_at_its_limit(run, monkeypatch):
    monkeypatch.setattr(command, "_MOST_BYTES", 1_000)
    answer = run("explain", input=b"no end\n" * 1_000)
    assert (answer.code, "stdin has more than" in answer.sentence) == (64, True)


def test_missing_question_on_a_terminal_shows_usage(terminal):
    answer = terminal("explain")
    assert answer.code == 64
    assert "Name an error, such as `redrive explain 503`" in answer.out


# ── what makes no sense ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["TimeotError"], "did you mean TimeoutError, "),
        (["200"], "status 200 is not a failure"),
        (["503", "--scope", "galaxy"], "--scope must be call, row or task"),
        (["503", "--sla", "soon"], "--sla must be a span"),
        (["503", "--timeout", "-1"], "--timeout must be more than 0 seconds"),
        (["503", "--retry-after", "soon"], "--retry-after must be a number of seconds or an HTTP date"),
        (["503", "--method", "P*ST"], "--method must be the method of a request"),
        (["nowhere.py:service"], "there is no file nowhere.py"),
        (["503", "--policy", "nowhere"], "is not a target"),
        (["vendor.py:flow"], "is a flow, which has no policy of its own"),
        (["vendor.py:settle"], "is a task, which is tried by the retry="),
        (["vendor.py:fetch"], "is a function, guarded perhaps"),
        (["vendor.py:number"], "is of the type int; name an exception"),
        (["503", "--policy", "vendor.py:number"], "name a Service or a Retry"),
        (["vendor.py:shipfats"], "did you mean 'shipfast'?"),
    ],
)
def test_unknown_question_is_rejected_in_a_sentence(run, vendor, words, said):
    answer = run("explain", *words)
    assert answer.code == 64
    assert said in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err


def test_question_is_shown_as_typed(facts, vendor):
    assert facts("vendor.BankDown")["asked"] == "vendor.BankDown"


@pytest.mark.parametrize(("words", "fits"), [(("404",), "always"), (("404", "--timeout", "10"), "never")])
def test_unretried_error_has_an_sla(run, words, fits):
    (found,) = json.loads(run("explain", *words, "--sla", "5", "--json").out)
    assert (found["sla"], found["fits"]) == (5.0, fits)


def test_narrow_terminal_shows_all_text(terminal, vendor):
    answer = terminal("explain", "vendor.py:shipfast", "--sla", "5", columns=40)
    assert "…" not in answer.out.replace("…a1b2", "").replace("…c3d4", "")
