"""Typed questions are understood and judged like the real errors."""

import errno
import json
import sqlite3
import urllib.error

import botocore.exceptions
import confluent_kafka
import grpc
import httpx
import psycopg
import psycopg2
import psycopg2.errors
import pymysql
import pytest

import redrive
from redrive.classify.tables.types import TYPES
from redrive.explain import UnclearQuestion, exception_names
from redrive.explain.dry_call import DEFAULT
from redrive.explain.explanation import explain
from redrive.explain.fake_errors import FailureDetails
from redrive.explain.question import of_class, phrases, read


def only(text, **given):
    (found,) = read(text, FailureDetails(**given))
    return found


def judged(text, **given):
    verdict = redrive.classify(only(text, **given).failure)
    return verdict.kind, verdict.rule


def unavailable():
    class Failed(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return ""

    return Failed()


def busy():
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE one (id PRIMARY KEY)")
        connection.execute("INSERT INTO one VALUES (1)")
        try:
            connection.execute("INSERT INTO one VALUES (1)")
        except sqlite3.IntegrityError as error:
            return error
        finally:
            connection.rollback()
    raise AssertionError


REAL = {
    "503": lambda: httpx.Response(503),
    "HTTP 429": lambda: httpx.Response(429),
    "http/1.1 404": lambda: httpx.Response(404),
    "40P01": lambda: psycopg.errors.DeadlockDetected("x"),
    "SQLSTATE 23505": lambda: psycopg.errors.UniqueViolation("x"),
    "sqlstate 57p03": lambda: psycopg.errors.CannotConnectNow("x"),
    "ECONNREFUSED": lambda: OSError(errno.ECONNREFUSED, "x"),
    "errno 28": lambda: OSError(errno.ENOSPC, "x"),
    "1213": lambda: pymysql.err.OperationalError(1213, "x"),
    "MySQL 1062": lambda: pymysql.err.IntegrityError(1062, "x"),
    "SQLITE_CONSTRAINT_PRIMARYKEY": busy,
    "UNAVAILABLE": unavailable,
    "grpc StatusCode.UNAVAILABLE": unavailable,
    "kafka _TRANSPORT": lambda: confluent_kafka.KafkaException(
        confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT)
    ),
    "ThrottlingException": lambda: botocore.exceptions.ClientError(
        {"Error": {"Code": "ThrottlingException"}}, "PutItem"
    ),
    "botocore.exceptions.ClientError:SlowDown": lambda: botocore.exceptions.ClientError(
        {"Error": {"Code": "SlowDown"}}, "PutObject"
    ),
    "TimeoutError": lambda: TimeoutError(),
    "httpx.ReadTimeout": lambda: httpx.ReadTimeout("x"),
    "json.JSONDecodeError": lambda: json.JSONDecodeError("x", "{", 1),
    "json.decoder.JSONDecodeError": lambda: json.JSONDecodeError("x", "{", 1),
    "psycopg.errors.DeadlockDetected": lambda: psycopg.errors.DeadlockDetected("x"),
    "redrive.RateLimited": lambda: redrive.RateLimited(),
    "redrive.errors.CircuitOpen": lambda: redrive.CircuitOpen(),
    "MemoryError": lambda: MemoryError(),
}


@pytest.mark.parametrize("text", list(REAL))
def test_typed_name_is_judged_like_the_real_error(text):
    real = redrive.classify(REAL[text]())
    assert judged(text) == (real.kind, real.rule)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_name_of_the_table_can_be_explained(name):
    kind, rule = judged(name)
    assert kind in redrive.Kind
    assert not rule.startswith("unknown")


def test_code_set_when_raised_is_set_in_the_explanation():
    (found,) = [one for one in read("DeadlockDetected") if "psycopg2" in one.read_as]
    assert redrive.classify(found.failure).rule == "sqlstate.40P01"
    assert isinstance(found.failure, psycopg2.errors.DeadlockDetected)


def test_ambiguous_name_lists_all_its_meanings():
    assert {one.read_as for one in read("ReadTimeout")} == {
        "exception httpx.ReadTimeout",
        "exception httpx2.ReadTimeout",
        "exception niquests.ReadTimeout",
        "exception requests.ReadTimeout",
    }
    assert {one.read_as for one in read("UNKNOWN")} == {"gRPC's UNKNOWN", "Kafka's UNKNOWN"}


def test_builtin_is_explained_and_lists_its_namesakes():
    found = only("ConnectionError")
    assert found.read_as == "exception ConnectionError"
    assert "requests.ConnectionError" in found.note


def test_missing_library_is_judged_by_the_name():
    found = only("MySQLdb.OperationalError")
    assert "MySQLdb is not installed here" in found.note
    assert redrive.classify(found.failure).rule == "type.MySQLdb.OperationalError"


def test_detail_after_a_status_counts():
    assert judged("503", retry_after="30") == ("rate_limited", "http.503.retry_after")
    assert judged("403") == ("permanent", "http.4xx")
    assert judged("403", body='{"error": "quotaExceeded"}') == ("quota", "http.403.quota")


def test_class_is_explained_whatever_its_constructor_needs():
    class Demanding(Exception):
        def __init__(self, code, *, of):
            raise AssertionError("never called")

    class Unmade(Exception):
        def __new__(cls, *args):
            raise RuntimeError("only the library makes these")

    for cls in (Demanding, Unmade):
        verdict = redrive.classify(of_class("x", cls, FailureDetails()).failure)
        assert (verdict.kind, verdict.reason) == ("permanent", f"unknown error {cls.__name__}")


REFUSED = {
    "TimeotError": "did you mean TimeoutError, ",
    "httpx.ReadTimout": "did you mean httpx.ReadTimeout",
    "nonsense": "ask for an exception",
    "28": "pass `errno 28`",
    "999": "not an HTTP status",
    "errno 99999": "no error number 99999",
    "SQLITE_NONSENSE": "not a result code of SQLite",
    "grpc NONSENSE": "no rule names 'NONSENSE' of grpc",
    "KeyboardInterrupt": "a signal to stop",
    "asyncio.CancelledError": "a signal to stop",
    "nowhere.at.All": "'nowhere' is not installed here",
    "": "nothing is known of ''",
    "\x1b[31mred": "nothing is known of",
    "x" * 100_000: "nothing is known of",
}


@pytest.mark.parametrize("text", list(REFUSED), ids=lambda text: text[:20])
def test_invalid_question_is_rejected_in_one_sentence(text):
    with pytest.raises(UnclearQuestion) as caught:
        read(text)
    assert REFUSED[text] in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "said"), [("200", "status 200 is not a failure"), ("99999", "no rule knows SQLSTATE 99999")]
)
def test_success_and_unknown_name_are_reported(text, said):
    with pytest.raises(UnclearQuestion, match=said):
        explain(only(text), DEFAULT)


def test_several_questions_are_read_from_one_line():
    assert phrases(["HTTP", "429", "503", "SQLSTATE", "40P01", "errno", "28"]) == [
        *("HTTP 429", "503", "SQLSTATE 40P01", "errno 28")
    ]


def test_only_libraries_of_the_table_are_imported(tmp_path, monkeypatch):
    (tmp_path / "dangerous.py").write_text("raise SystemExit('it ran')\nclass Broken(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert exception_names.find_class("dangerous.Broken") is None


CHANGED = [text for text in REAL if not text.startswith("redrive.")]


@pytest.mark.parametrize("text", CHANGED)
def test_proposed_change_changes_the_verdict(text):
    found = explain(only(text), DEFAULT)
    modules = {name: __import__(name) for name in ("httpx", "psycopg", "pymysql", "grpc", "json", "sqlite3", "errno")}
    modules |= {"redrive": redrive, "confluent_kafka": confluent_kafka, "botocore": botocore}
    classifier = eval(found.change, modules)
    wanted = "permanent" if found.verdict.kind in redrive.Retry().on else "transient"
    real = REAL[text]()
    assert classifier.classify(real).kind == wanted
    assert classifier.classify(RuntimeError("another error")).rule == "unknown"


def test_rules_of_the_policy_decide_and_are_named():
    from redrive.explain.dry_call import ServicePolicy

    service = redrive.Service("bank", classifier=redrive.Classifier().rule(status=409, kind="row", name="taken"))
    found = explain(only("409"), ServicePolicy.of(service))
    assert (found.verdict.kind, found.verdict.rule, found.built_in) == ("row", "taken", False)
    assert explain(only("503"), ServicePolicy.of(service)).built_in


# ── what classes make of it ───────────────────────────────────────────────────────────────────────────────────────────


class Lookup(Exception):
    def __getattr__(self, name):
        return self.__dict__["fields"][name]


class Endless(Exception):
    def __getattr__(self, name):
        return getattr(self.inner, name)


class Half(Exception):
    @property
    def response(self):
        return {}["response"]


@pytest.mark.parametrize("cls", [Lookup, Endless, Half, urllib.error.HTTPError])
def test_class_that_needs_its_constructor_is_explained(cls):
    reading = of_class(cls.__name__, cls, FailureDetails())
    assert explain(reading, DEFAULT).verdict == redrive.classify(reading.failure)


class Throttled(redrive.RateLimited):
    def __init__(self, shop, seconds):
        super().__init__(f"{shop} is busy", retry_after=seconds)


class Asleep(redrive.CircuitOpen):
    def __init__(self, shop):
        super().__init__(shop)


def test_subclass_of_redrives_errors_states_its_verdict():
    assert redrive.classify(of_class("Throttled", Throttled, FailureDetails()).failure).kind == "rate_limited"
    assert (
        redrive.classify(of_class("Throttled", Throttled, FailureDetails(retry_after="20")).failure).retry_after == 20
    )
    assert redrive.classify(of_class("Asleep", Asleep, FailureDetails()).failure).kind == "transient"


OURS = [
    name
    for name, cls in vars(redrive.errors).items()
    if isinstance(cls, type) and issubclass(cls, redrive.errors.RedriveError) and name != "StatedVerdict"
]


@pytest.mark.parametrize("name", OURS)
def test_every_redrive_error_has_an_explanation(name):
    assert explain(only(f"redrive.errors.{name}"), DEFAULT).verdict.kind


def test_class_without_a_kind_is_rejected():
    with pytest.raises(UnclearQuestion, match="states no kind, and is never raised itself"):
        read("redrive.errors.StatedVerdict")


def test_open_circuit_is_waited_for_and_blamed_on_no_service():
    found = explain(only("redrive.CircuitOpen"), DEFAULT)
    assert found.schedule.total.best == 4 * redrive.Breaker().cooldown
    assert found.breaker == "not counted here: it is a failure of another service"
    assert explain(only("redrive.CircuitOpen", retry_after="12"), DEFAULT).schedule.total.best == 48


def test_redirect_with_retry_after_is_returned():
    with pytest.raises(UnclearQuestion, match=r"HTTP status 301 is not a failure: redrive returns it as it is$"):
        explain(only("301", retry_after="5"), DEFAULT)


@pytest.mark.parametrize("code", ["MySQL 9999", "SQLITE_DONE", "99999"])
def test_unknown_code_is_not_judged_by_an_unnamed_class(code):
    with pytest.raises(UnclearQuestion, match="the class of the driver's error decides: ask by that"):
        explain(only(code), DEFAULT)


@pytest.mark.parametrize(
    ("number", "said"), [("99", "`errno 99` where"), ("1000", "`errno 1000` or `MySQL 1000` where")]
)
def test_unknown_number_suggests_only_possible_meanings(number, said):
    with pytest.raises(UnclearQuestion, match=said):
        read(number)


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("503 Service Unavailable", "HTTP status 503"),
        ("status 503", "HTTP status 503"),
        ("status_code=429", "HTTP status 429"),
        ("[Errno 28] No space left on device", "errno 28, ENOSPC"),
        ("OSError: [Errno 28] No space left on device: '/data'", "errno 28, ENOSPC"),
        ("gaierror: [Errno -2] Name or service not known", "exception socket.gaierror"),
    ],
)
def test_log_lines_are_understood(text, read_as):
    assert [found.read_as for found in read(text)] == [read_as]


def test_class_of_another_library_is_not_suggested():
    assert exception_names.near("radis.exceptions.ConnectionError") == []
