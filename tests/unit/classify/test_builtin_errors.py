"""The table over builtin and standard library errors, in the three scopes."""

from __future__ import annotations

import csv
import decimal
import errno
import gzip
import json
import os
import socket
import sqlite3
import ssl
import subprocess
import zlib
from datetime import date
from urllib.error import ContentTooShortError, URLError
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import pytest

from redrive import classify
from redrive.model.calls import Kind


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


DATA_ERRORS = [
    error_of(float, "N/A"),
    error_of(int, None),
    error_of(lambda: {}["fee"]),
    error_of([].pop),
    error_of(b"\xff".decode),
    error_of("ß".encode, "ascii"),
    error_of(decimal.Decimal, "N/A"),
    error_of(lambda: decimal.Decimal(1) / 0),
    error_of(date.fromisoformat, "31.12.2024"),
    error_of(date, 2024, 13, 1),
    error_of(lambda: 1 / 0),
    error_of(lambda: 10.0**1000),
    error_of(ZoneInfo, "Mars/Olympus"),
    error_of(lambda: list(csv.reader(['"never closed'], strict=True))),
    AssertionError("fee is negative"),
    LookupError("no such vendor"),
]


@pytest.mark.parametrize("error", DATA_ERRORS, ids=lambda error: f"{type(error).__name__}: {error}")
def test_data_error_has_another_verdict_in_each_scope(error):
    assert classify(error, "row").kind is Kind.ROW
    assert classify(error, "call").kind is Kind.PERMANENT
    assert classify(error, "task").kind is Kind.AMBIGUOUS
    assert classify(error).kind is Kind.PERMANENT


GARBLED = [
    error_of(json.loads, '{"a": '),
    error_of(zlib.decompress, b"no"),
    error_of(gzip.decompress, b"not gzip"),
    error_of(gzip.decompress, gzip.compress(b"whole")[:-9]),
    error_of(ElementTree.fromstring, "<a>"),
]


@pytest.mark.parametrize("error", GARBLED, ids=lambda error: f"{type(error).__name__}: {error}")
def test_unparsable_bytes_reject_a_row_and_are_else_ambiguous(error):
    assert classify(error, "row").kind is Kind.ROW
    assert classify(error, "call").kind is Kind.AMBIGUOUS
    assert classify(error, "task").kind is Kind.AMBIGUOUS


BUGS = [
    error_of(lambda: None.fee),
    error_of(__import__, "no_such_module"),
    error_of(lambda: no_such_name),  # noqa: F821
    error_of(compile, "def", "<test>", "exec"),
    NotImplementedError(),
    ImportError("cannot import name"),
]


@pytest.mark.parametrize("scope", ["call", "row", "task"])
@pytest.mark.parametrize("error", BUGS, ids=lambda error: type(error).__name__)
def test_bug_in_the_code_is_permanent_everywhere(error, scope):
    verdict = classify(error, scope)
    assert verdict.kind is Kind.PERMANENT
    assert verdict.reason.startswith("bug: ")


ERRNO_KINDS = {
    "permanent": ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "ENOENT"],
    "transient": [
        *("ETIMEDOUT", "ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "EPIPE", "EHOSTUNREACH", "ENETUNREACH"),
        *("ENETDOWN", "EAGAIN", "EINTR", "EBUSY"),
    ],
    "ambiguous": ["EIO", "EMFILE"],
    "resource": ["ENOMEM"],
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in ERRNO_KINDS.items() for name in names])
def test_error_number_of_the_os_decides(name, kind):
    number = getattr(errno, name)
    verdict = classify(OSError(number, os.strerror(number)))
    assert verdict.kind == kind
    assert verdict.rule == f"errno.{name}"
    assert verdict.detail is not None
    assert os.strerror(number) in verdict.detail


@pytest.mark.parametrize(
    ("error", "kind", "rule"),
    [
        (TimeoutError(), "transient", "type.TimeoutError"),
        (ConnectionError("no errno"), "transient", "type.ConnectionError"),
        (ConnectionResetError(), "transient", "type.ConnectionResetError"),
        (BrokenPipeError(), "transient", "type.BrokenPipeError"),
        (PermissionError("no errno"), "permanent", "type.PermissionError"),
        (error_of(open, "/no/such/file"), "permanent", "errno.ENOENT"),
        (MemoryError(), "resource", "type.MemoryError"),
        (error_of(socket.getaddrinfo, "127.0.0.1", "no-such-service"), "permanent", "type.socket.gaierror"),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), "transient", "type.socket.gaierror"),
        # On some systems EAI_AGAIN is 2, which is also ENOENT.
        (socket.gaierror(errno.ENOENT, "try again"), "transient", "type.socket.gaierror"),
        (ssl.SSLCertVerificationError(1, "expired"), "permanent", "type.ssl.SSLCertVerificationError"),
        (ssl.SSLEOFError(8, "EOF"), "transient", "type.ssl.SSLEOFError"),
        (ssl.SSLZeroReturnError(6, "closed"), "transient", "type.ssl.SSLZeroReturnError"),
        (ssl.SSLSyscallError(5, "syscall"), "transient", "type.ssl.SSLSyscallError"),
        # The 1 of OpenSSL is not the EPERM of the operating system.
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), "ambiguous", "type.ssl.SSLError"),
        (URLError(ssl.SSLCertVerificationError(1, "expired")), "permanent", "type.ssl.SSLCertVerificationError"),
        (URLError(socket.gaierror(-2, "unknown")), "transient", "type.socket.gaierror"),
        (URLError(TimeoutError("timed out")), "transient", "type.TimeoutError"),
        (URLError(OSError(errno.ENOSPC, "full")), "permanent", "errno.ENOSPC"),
        (URLError("unknown url type: foo"), "permanent", "type.urllib.URLError"),
        (ContentTooShortError("got half", b""), "transient", "type.urllib.ContentTooShortError"),
        (subprocess.TimeoutExpired("sleep", 1), "transient", "type.subprocess.TimeoutExpired"),
        (sqlite3.OperationalError("made by hand, no code"), "permanent", "type.sqlite3.OperationalError"),
        (ExceptionGroup("one", [TimeoutError()]), "transient", "type.TimeoutError"),
        (ExceptionGroup("two", [TimeoutError(), ValueError()]), "permanent", "type.ValueError"),
    ],
    ids=repr,
)
def test_nearest_named_class_decides_where_there_is_no_code(error, kind, rule):
    verdict = classify(error)
    assert (verdict.kind, verdict.rule) == (kind, rule)


class BankDown(Exception):
    pass


class BankSlow(TimeoutError):
    pass


def test_unknown_error_is_permanent_and_in_a_task_ambiguous():
    verdict = classify(BankDown("the bank is down"))
    assert verdict.kind is Kind.PERMANENT
    assert verdict.rule == "unknown"
    assert verdict.reason == "unknown error BankDown"
    assert verdict.detail == "the bank is down"
    assert classify(BankDown(), "row").kind is Kind.PERMANENT
    assert classify(BankDown(), "task").kind is Kind.AMBIGUOUS


def test_bare_oserror_is_judged_by_its_cause():
    error = OSError("no number")
    error.__cause__ = ConnectionResetError(errno.ECONNRESET, "reset")
    assert classify(error).rule == "errno.ECONNRESET"


def test_subclass_is_judged_by_its_nearest_named_ancestor():
    verdict = classify(BankSlow())
    assert verdict.kind is Kind.TRANSIENT
    assert verdict.rule == "type.TimeoutError"
    assert verdict.reason == "timed out (BankSlow)"


def test_unknown_scope_is_rejected_with_the_known_ones():
    with pytest.raises(ValueError, match="call, row, task"):
        classify(ValueError(), "batch")


@pytest.mark.parametrize("thing", [None, 5, "error", object(), ValueError, {"status": 500}])
def test_object_that_is_no_error_or_response_is_rejected(thing):
    with pytest.raises(TypeError, match="only an exception or a response can be classified"):
        classify(thing)
