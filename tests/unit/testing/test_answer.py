"""Answer: checked and encoded when it is made."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime

import pytest

from redrive.testing import Answer


def head_lines(answer: Answer) -> list[str]:
    return answer.head(date="D", close=False).decode("latin-1").split("\r\n")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"status": 99}, ValueError, "100 to 599"),
        ({"status": 600}, ValueError, "100 to 599"),
        ({"status": "200"}, TypeError, "100 to 599"),
        ({"status": True}, TypeError, "100 to 599"),
        ({"json": {}, "body": ""}, ValueError, "not both"),
        ({"body": 7}, TypeError, "bytes or str"),
        ({"json": object()}, TypeError, "not JSON serializable"),
        ({"delay": -0.1}, ValueError, "delay must be a finite number of seconds from 0 up"),
        ({"delay": math.nan}, ValueError, "delay"),
        ({"delay": "1"}, TypeError, "delay"),
        ({"drip": -1, "body": "x"}, ValueError, "drip"),
        ({"retry_after": -1}, ValueError, "retry_after"),
        ({"retry_after": math.inf}, ValueError, "retry_after"),
        ({"retry_after": "soon"}, TypeError, "retry_after"),
        ({"retry_after": datetime(2025, 1, 1)}, ValueError, "with zone"),
        ({"reset": "after"}, ValueError, "'before' or 'mid-body'"),
        ({"reset": "mid-body"}, ValueError, "at least 2 bytes"),
        ({"truncate": True, "body": "x"}, ValueError, "at least 2 bytes"),
        ({"hang": True, "reset": "before"}, ValueError, "hang and reset"),
        ({"hang": True, "delay": 1}, ValueError, "cannot have a delay"),
        ({"truncate": True, "drip": 1, "body": "xy"}, ValueError, "truncate and drip"),
        ({"status": 204, "json": {}}, ValueError, "no body"),
        ({"headers": {"Bad Name": "x"}}, ValueError, "not a header name"),
        ({"headers": {"X": "a\r\nInjected: b"}}, ValueError, "without line breaks"),
        ({"headers": {"X": "\u2603"}}, ValueError, "latin-1"),
        ({"headers": ["X"]}, TypeError, "map names to values"),
    ],
)
def test_invalid_arguments_raise(arguments, error, says):
    with pytest.raises(error, match=says):
        Answer(**arguments)


@pytest.mark.parametrize("status", [100, 200, 299, 599])
def test_every_status_in_the_range_is_allowed(status):
    assert head_lines(Answer(status))[0].startswith(f"HTTP/1.1 {status} ")


def test_answer_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Answer().status = 500


def test_times_returns_copies_of_an_answer():
    assert Answer(503).times(3) == (Answer(503), Answer(503), Answer(503))
    assert Answer(503).times(0) == ()
    with pytest.raises(ValueError, match="from 0 times up"):
        Answer(503).times(-1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2, "2"),
        (2.0, "2"),
        (0.25, "0.25"),
        (1_000_000, "1000000"),
        (100, "100"),
        (datetime(2025, 3, 1, 12, tzinfo=UTC), "Sat, 01 Mar 2025 12:00:00 GMT"),
    ],
)
def test_retry_after_is_written_as_http_requires(value, text):
    assert f"Retry-After: {text}" in head_lines(Answer(429, retry_after=value))


@pytest.mark.parametrize(
    ("arguments", "content_type", "payload"),
    [
        ({"json": []}, "application/json", b"[]"),
        ({"json": False}, "application/json", b"false"),
        ({"body": "ä"}, "text/plain; charset=utf-8", b"\xc3\xa4"),
        ({"body": b"\x00"}, "application/octet-stream", b"\x00"),
    ],
)
def test_body_has_its_type_and_length(arguments, content_type, payload):
    answer = Answer(**arguments)
    assert answer.payload == payload
    assert f"Content-Type: {content_type}" in head_lines(answer)
    assert f"Content-Length: {len(payload)}" in head_lines(answer)


def test_passed_headers_override_the_default_ones():
    lines = head_lines(Answer(json={}, headers={"content-type": "application/problem+json", "date": "never"}))
    assert [line for line in lines if line.lower().startswith(("content-type", "date"))] == [
        "content-type: application/problem+json",
        "date: never",
    ]


@pytest.mark.parametrize(
    "answer", [Answer(100), Answer(headers={"Content-Length": "9"}), Answer(headers={"Connection": "close"})]
)
def test_answer_that_breaks_framing_ends_the_connection(answer):
    assert answer.closes
    assert not Answer(headers={"Content-Length": "0"}).closes
