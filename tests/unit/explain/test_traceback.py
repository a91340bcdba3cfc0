"""A printed traceback gets the verdict of its exception."""

import asyncio
import contextlib
import socket
import sqlite3
import traceback
import urllib.request
from pathlib import Path

import aiohttp
import botocore.exceptions
import confluent_kafka
import httpx
import psycopg
import pymysql
import pytest
import requests
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

import redrive
from redrive.explain import UnclearQuestion
from redrive.explain.tracebacks import TracebackException, of_traceback, parse
from tests.support.examples import examples


@pytest.fixture(scope="module")
def nobody():
    """An address of this machine with a closed port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def twice(url):
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE one (id INTEGER PRIMARY KEY)")
        for _ in range(2):
            connection.exec_driver_sql("INSERT INTO one VALUES (1)")


def refused(status):
    httpx.Response(status, request=httpx.Request("GET", "https://bank.example/x")).raise_for_status()


def refused_by_requests(status):
    response = requests.Response()
    response.status_code, response.url, response.reason = status, "https://bank.example", "No"
    response.raise_for_status()


async def over_aiohttp(port):
    async with aiohttp.ClientSession() as session:
        await session.get(f"http://127.0.0.1:{port}/")


def answered_by_aiohttp():
    request = aiohttp.RequestInfo("https://bank.example", "GET", {}, "https://bank.example")
    raise aiohttp.ClientResponseError(request, (), status=429, message="Too Many Requests")


def spent():
    redrive.Service("bank", retry=redrive.Retry(attempts=2, base=0, cap=0)).call(lambda: httpx.Response(503))


def shut():
    service = redrive.Service("bank", retry=None, breaker=redrive.Breaker(failures=1))
    with contextlib.suppress(TimeoutError):
        service.call(thrown(TimeoutError()))
    service.call(lambda: 1)


def thrown(error):
    def throw(*_):
        raise error

    return throw


def wrapped(*_):
    try:
        raise KeyError("fee")
    except KeyError as error:
        raise ValueError("the row is\nof no use") from error


AWS = botocore.exceptions.ClientError({"Error": {"Code": "SlowDown", "Message": "reduce: please"}}, "PutObject")
KAFKA = confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))

REAL = {
    "httpx, nobody there": lambda port: httpx.get(f"http://127.0.0.1:{port}/"),
    "requests, nobody there": lambda port: requests.get(f"http://127.0.0.1:{port}/", timeout=5),
    "urllib, nobody there": lambda port: urllib.request.urlopen(f"http://127.0.0.1:{port}/"),
    "aiohttp, nobody there": lambda port: asyncio.run(over_aiohttp(port)),
    "psycopg, nobody there": lambda port: psycopg.connect(f"host=127.0.0.1 port={port}"),
    "httpx 404": lambda _: refused(404),
    "httpx 503": lambda _: refused(503),
    "requests 422": lambda _: refused_by_requests(422),
    "aiohttp 429": lambda _: answered_by_aiohttp(),
    "SQLAlchemy over SQLite": lambda _: twice("sqlite://"),
    "psycopg": lambda _: thrown(psycopg.errors.DeadlockDetected("deadlock detected"))(),
    "pymysql": lambda _: thrown(pymysql.err.OperationalError(1213, "Deadlock found"))(),
    "AWS": lambda _: thrown(AWS)(),
    "Kafka": lambda _: thrown(KAFKA)(),
    "a file": lambda _: Path("/nowhere/at/all").read_text(),
    "retries exhausted": lambda _: spent(),
    "circuit open": lambda _: shut(),
    "a syntax error": lambda _: compile("foo(", "job.py", "exec"),
    "a cause": wrapped,
    "a group of one": thrown(ExceptionGroup("all", [ExceptionGroup("of them", [TimeoutError("late")])])),
    "a group of two": thrown(ExceptionGroup("both", [TimeoutError("late"), ValueError()])),
    "no message": thrown(AssertionError()),
    "locked": thrown(sqlite3.OperationalError("database is locked")),
}


@pytest.mark.parametrize("case", [case for case in REAL if case != "locked"])
@pytest.mark.parametrize("scope", ["call", "task"])
def test_traceback_is_judged_like_the_error_itself(case, scope, nobody):
    with pytest.raises(Exception) as caught:
        REAL[case](nobody)
    text = "".join(traceback.format_exception(caught.value))
    real, told = redrive.classify(caught.value, scope), redrive.classify(of_traceback(parse(text)).failure, scope)
    assert (told.kind, told.rule) == (real.kind, real.rule)


def test_sqlite_code_missing_in_a_traceback_is_restored():
    chain = (TracebackException(type="sqlite3.OperationalError", message="database is locked"),)
    assert redrive.classify(of_traceback(chain).failure).rule == "sqlite.BUSY"


def printed(error):
    try:
        raise error
    except BaseException as raised:
        return "".join(traceback.format_exception(raised))


def test_last_traceback_of_a_log_counts():
    log = f"""2026-11-15 06:00:01 INFO began
2026-11-15 06:00:02 ERROR first
{printed(ValueError("first"))}
2026-11-15 06:00:03 ERROR second
{printed(TimeoutError("second"))}"""
    assert parse(log) == (TracebackException(type="TimeoutError", message="second"),)


def test_chain_is_explained_from_its_first_cause():
    with pytest.raises(ValueError) as caught:
        wrapped()
    chain = parse("".join(traceback.format_exception(caught.value)))
    assert [(told.type, told.link) for told in chain] == [("KeyError", None), ("ValueError", "cause")]
    assert chain[-1].message == "the row is\nof no use"
    assert of_traceback(chain).read_as == "traceback of ValueError, after KeyError"


def test_coloured_or_indented_traceback_is_read():
    plain = printed(TimeoutError("late"))
    coloured = plain.replace("TimeoutError", "\x1b[1;35mTimeoutError\x1b[0m")
    indented = "\n".join(f"    {line}" for line in plain.splitlines())
    for text in (coloured, indented, plain.replace("\n", "\r\n")):
        assert parse(text) == (TracebackException(type="TimeoutError", message="late"),)


@pytest.mark.parametrize(
    ("line", "type_"),
    [
        ("httpx.ReadTimeout: timed out", "httpx.ReadTimeout"),
        ("  KeyError: 'fee'  ", "KeyError"),
        ("ERROR: something\nValueError: no\n", "ValueError"),
    ],
)
def test_single_line_is_enough(line, type_):
    assert [told.type for told in parse(line)] == [type_]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "all is well\nnote: nothing happened", "Traceback (most recent call last):"]
)
def test_text_without_an_exception_is_none(text):
    assert parse(text) == ()


def test_notes_added_by_redrive_are_read():
    service = redrive.Service("bank", retry=redrive.Retry(attempts=2, base=0, cap=0))
    with pytest.raises(ConnectionResetError) as caught:
        service.call(thrown(ConnectionResetError("gone")))
    found = of_traceback(parse("".join(traceback.format_exception(caught.value))))
    assert found.note.startswith("redrive reported: service 'bank'")
    assert "2 attempts" in found.note


def test_users_class_is_not_imported_and_named_as_missing():
    found = of_traceback(
        parse('Traceback (most recent call last):\n  File "a.py", line 1, in x\njobs.bank.BankDown: no')
    )
    assert "jobs.bank.BankDown is not here" in found.note
    assert redrive.classify(found.failure).rule == "unknown"


def test_stop_signal_is_no_failure():
    with pytest.raises(UnclearQuestion, match="a signal to stop"):
        of_traceback(parse(printed(KeyboardInterrupt())))


@settings(max_examples=examples(200), deadline=None)
@given(st.text() | st.text(alphabet="Traceback (most recent call last):\n |+-ValueError File"))
def test_invalid_text_raises_no_error(text):
    if chain := parse(text):
        redrive.classify(of_traceback(chain).failure)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=4))
def test_any_message_raises_no_error(messages):
    error = None
    for message in messages:
        following = ValueError(message)
        following.__cause__ = error
        error = following
    chain = parse(printed(error))
    assert chain[-1].type
    redrive.classify(of_traceback(chain).failure)


def test_open_circuit_has_the_duration_of_the_traceback(circuit_open):
    error, text = circuit_open
    found = of_traceback(parse(text)).failure
    assert redrive.classify(found).retry_after == pytest.approx(redrive.classify(error).retry_after, abs=0.5)
    assert found.redrive.service == error.redrive.service == "ship"


@pytest.fixture
def circuit_open():
    service = redrive.Service("ship", retry=redrive.Retry(attempts=1), breaker=redrive.Breaker(failures=1, rate=0))
    with contextlib.suppress(ConnectionError):
        service.call(_reset)
    with pytest.raises(redrive.CircuitOpen) as caught:
        service.call(_reset)
    return caught.value, "".join(traceback.format_exception(caught.value))


def _reset():
    raise ConnectionResetError


def test_container_name_before_each_line_is_ignored():
    text = "Traceback (most recent call last):\n  File \"job.py\", line 3, in <module>\nKeyError: 'fee'\n"
    named = "".join(f"worker-1  | {line}" for line in text.splitlines(keepends=True))
    assert parse(named) == parse(text) == (TracebackException(type="KeyError", message="'fee'"),)
