"""Packs: what they name, and cases that the table of `tests/packs`, which provokes the errors, cannot contain."""

from __future__ import annotations

import ftplib
import inspect
import smtplib
import ssl
import warnings

import httpx2
import nats.errors
import nats.js.errors
import pymongo.errors
import pytest
import redis.exceptions

from redrive import Service, classify
from redrive.classify.packs import PACKS
from redrive.classify.tables.types import TYPES
from redrive.classify.type_names import type_names
from redrive.model.calls import Kind

with warnings.catch_warnings(action="ignore"):  # it would like to have grpcio-status
    import google.api_core.exceptions


def test_httpx2_response_that_reports_a_failure_is_no_success():
    service = Service("bank", retry=None)
    with pytest.raises(Exception, match="503"):
        service.call(lambda: httpx2.Response(503))
    assert service.stats().successes == 0


MODULES = {
    "redis": [redis.exceptions],
    "pymongo": [pymongo.errors],
    "google": [google.api_core.exceptions],
    "nats": [nats.errors, nats.js.errors],
    "ftplib": [ftplib],
    "smtplib": [smtplib],
}


@pytest.mark.parametrize("library", MODULES)
def test_every_library_exception_or_its_base_is_named(library):
    found = [
        cls
        for module in MODULES[library]
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Exception) and type_names(cls)[0].startswith(f"{library}.")
    ]
    assert found
    unknown = [cls.__name__ for cls in found if not any(name in TYPES for name in type_names(cls) if "." in name)]
    assert unknown == []


def test_packs_name_each_library_once():
    libraries = [pack.library for pack in PACKS]
    assert len(libraries) == len(set(libraries))


class TestPyodbc:
    """With stand-ins for its classes: the real ones need a library of the operating system."""

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("40001", "retry_now"),
            ("08S01", "transient"),
            ("HYT00", "transient"),
            ("28000", "auth"),
            ("23000", "row"),
            ("42S02", "permanent"),
            ("IM002", "permanent"),
        ],
    )
    def test_sqlstate_in_the_first_argument_decides(self, code, kind):
        error = type("Error", (Exception,), {"__module__": "pyodbc"})
        assert classify(error(code, f"[{code}] said")).kind == kind


class TestReportedError:
    def test_error_reported_by_another_decides(self):
        said = google.api_core.exceptions.TooManyRequests("slow down")
        verdict = classify(google.api_core.exceptions.RetryError("exhausted", said))
        assert (verdict.kind, verdict.rule) == (Kind.RATE_LIMITED, "type.google.TooManyRequests")

    def test_report_without_an_error_is_judged_by_itself(self):
        verdict = classify(google.api_core.exceptions.RetryError("exhausted", None))
        assert (verdict.kind, verdict.rule) == (Kind.TRANSIENT, "type.google.RetryError")

    def test_bad_certificate_is_found_below(self):
        error = redis.exceptions.ConnectionError("handshake failed")
        error.__cause__ = ssl.SSLCertVerificationError("self-signed")
        assert classify(error).kind is Kind.PERMANENT


class TestAmbiguousCode:
    @pytest.mark.parametrize(
        ("said", "kind"),
        [("Incorrect username or password was specified.", "auth"), ("Could not connect", "transient")],
    )
    def test_message_distinguishes_the_meanings(self, said, kind):
        # With the connector itself in `make packs`.
        error = type("Error", (Exception,), {"__module__": "snowflake.connector.errors"})(said)
        error.errno, error.sqlstate = 250001, "08001"
        assert classify(error).kind == kind
