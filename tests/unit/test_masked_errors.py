"""What is masked in one message of an exception is masked in all of its texts."""

from __future__ import annotations

import json
import logging
import traceback

import httpx
import pytest

from redrive._internal.masked_errors import masked_traceback, secrets_of, without
from redrive.observe.log import JsonFormatter
from redrive.rows.errors import RunFault


def caught(function):
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def wrong_port():
    with httpx.Client(trust_env=False) as client:
        client.get("http://svc:Zq77x#1@127.0.0.1/")


def named_then_quoted():
    try:
        raise ValueError("not a number: 'Zq77x'")
    except ValueError as error:
        error.add_note("see Zq77x")
        raise RuntimeError("cannot log in with password=Zq77x") from error


def quoted_then_named():
    try:
        raise ValueError("password=Zq77x")
    except ValueError:
        raise RuntimeError("Zq77x is not a number") from None


def of_a_note():
    error = ValueError("Zq77x is not a number")
    error.add_note("sent with password=Zq77x")
    raise error


def in_a_group():
    raise ExceptionGroup("several", [ValueError("Zq77x is not a number"), ValueError("password=Zq77x")])


def of_a_url():
    try:
        int("Zq77x")
    except ValueError as error:
        raise ConnectionError("no answer of postgresql://etl:Zq77x#1@db/prod") from error


CHAINS = [wrong_port, named_then_quoted, quoted_then_named, of_a_note, in_a_group, of_a_url]


@pytest.mark.parametrize("chain", CHAINS)
class TestValueMaskedInOneMessage:
    def test_is_masked_in_the_traceback(self, chain):
        error = caught(chain)
        assert "Zq77x" in "".join(traceback.format_exception(error))
        shown = masked_traceback(error)
        assert "***" in shown
        assert "Zq77x" not in shown.replace("'Zq77x'\")", "")
        assert f"in {chain.__name__}" in shown

    def test_is_masked_in_the_log(self, chain):
        error = caught(chain)
        record = logging.LogRecord("own", logging.ERROR, __file__, 1, "x", (), (type(error), error, None))
        assert "Zq77x" not in json.loads(JsonFormatter().format(record))["traceback"]

    def test_is_masked_in_the_error_of_a_run(self, chain):
        assert "Zq77x" not in str(RunFault.of(caught(chain)).detail)


def test_other_texts_are_unchanged():
    assert secrets_of(ValueError("could not convert 'N/A'")) == ()
    assert secrets_of(ValueError("password=abc")) == ()  # found in every text
    assert without("pass Zq77xy, Zq77x and Zq77x_", ["Zq77x"]) == "pass Zq77xy, *** and ***_"


class Loud(Exception):
    def __str__(self):
        raise ValueError("password=Zq77x")


def test_error_without_a_text_has_no_secrets():
    assert secrets_of(Loud()) == ()


def test_chain_without_end_is_read_once():
    one, other = ValueError("password=Zq77x"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert secrets_of(other) == ("Zq77x",)
