"""Every error of the table, raised by the real library: the light libraries here, all of them in `make packs`."""

from __future__ import annotations

import logging
import os

import pytest

from tests.packs.page import PAGE, render
from tests.packs.table import Argued, judge, read_argued, read_cases

# Some of the libraries leave a socket open where a connection fails, and warn of each other.
pytestmark = pytest.mark.filterwarnings("ignore")

CASES, ARGUED = read_cases(), read_argued()

LIGHT = (
    *("redis", "pymongo", "google.api_core", "google.auth", "openai", "botocore", "nats"),
    *("requests", "httpx", "httpx2", "aiohttp", "urllib3", "sqlite3", "grpc"),
    *("urllib", "http", "smtplib", "ftplib", "imaplib", "poplib", "socket"),
)
"""Libraries of the test environment whose errors come in milliseconds."""

EVERY = tuple(dict.fromkeys(case.library for case in CASES))
ALONE = ("niquests",)
"""It replaces urllib3 for every other library, and so has an environment of its own."""

LIBRARIES = {
    "light": LIGHT,
    "all": tuple(library for library in EVERY if library not in ALONE),
    "alone": ALONE,
}[os.environ.get("REDRIVE_PACKS", "light")]


@pytest.fixture(autouse=True)
def quiet_logs():
    """Clients log what they raise, some of it while their threads end."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("library", LIBRARIES)
def test_errors_of_library_are_judged_as_expected(library):
    wrong = []
    for case in [case for case in CASES if case.library == library]:
        verdict = judge(case)
        argued = ARGUED.get(case.key)
        if verdict.kind != (argued.got if argued else case.expected):
            wrong.append((case.failure, case.expected, str(verdict.kind), verdict.rule))
        elif "Retry-After" in case.failure and verdict.kind == "rate_limited" and not argued:
            assert verdict.retry_after == 7, case
    assert wrong == []


def test_light_libraries_are_in_the_table():
    assert set(LIGHT) <= set(EVERY)


def test_argued_rows_are_in_the_table():
    assert ARGUED.keys() <= {case.key for case in CASES}
    assert all(isinstance(argued, Argued) and argued.why for argued in ARGUED.values())


def test_page_shows_the_table():
    assert PAGE.read_text() == render(), "write it again: python -m tests.packs.page"


def test_table_covers_every_declared_error():
    differing = [case for case in CASES if case.key in ARGUED]
    agreeing = len(CASES) - sum(ARGUED[case.key].got != case.expected for case in differing)
    assert len(CASES) >= 475
    assert len(EVERY) >= 40
    assert agreeing / len(CASES) >= 460 / 475
