"""Every public exception of a supported library has an entry in the tables, or is left out on purpose."""

from __future__ import annotations

import inspect
import sqlite3

import aiohttp
import duckdb
import httpx
import psycopg
import pytest
import requests
import urllib3.exceptions
from aiohttp import client_exceptions

from redrive.classify.tables.types import TYPES
from redrive.classify.type_names import type_names

LEFT_OUT: dict[str, str] = {
    "requests.RequestsWarning": "a warning",
    "requests.FileModeWarning": "a warning",
    "requests.RequestsDependencyWarning": "a warning",
    "urllib3.DependencyWarning": "a warning",
    "urllib3.HTTPWarning": "a warning",
    "urllib3.InsecurePlatformWarning": "a warning",
    "urllib3.InsecureRequestWarning": "a warning",
    "urllib3.NotOpenSSLWarning": "a warning",
    "urllib3.SecurityWarning": "a warning",
    "urllib3.SystemTimeWarning": "a warning",
    "email.MessageDefect": "of the standard library, only imported there",
}


def exceptions_of(module):
    return [cls for _, cls in inspect.getmembers(module, inspect.isclass) if issubclass(cls, Exception)]


def name_of(cls):
    return type_names(cls)[0]


@pytest.mark.parametrize(
    "cls",
    [
        *exceptions_of(httpx),
        *exceptions_of(requests.exceptions),
        *exceptions_of(client_exceptions),
        *(cls for cls in exceptions_of(aiohttp) if not issubclass(cls, Warning)),
        *exceptions_of(psycopg),
        *exceptions_of(duckdb),
        *exceptions_of(sqlite3),
        *exceptions_of(urllib3.exceptions),
    ],
    ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}",
)
def test_every_public_exception_has_an_entry_of_its_own(cls):
    name = name_of(cls)
    assert name in TYPES or name in LEFT_OUT, f"{name} is new: decide what it means"


def test_no_exception_is_both_named_and_left_out():
    assert TYPES.keys().isdisjoint(LEFT_OUT)


@pytest.mark.parametrize("library", ["httpx", "requests", "aiohttp", "duckdb", "urllib3"])
def test_every_entry_names_an_existing_exception(library):
    modules = {
        "httpx": [httpx],
        "requests": [requests.exceptions],
        "aiohttp": [client_exceptions, aiohttp],
        "duckdb": [duckdb],
        "urllib3": [urllib3.exceptions],
    }
    existing = {name_of(cls) for module in modules[library] for cls in exceptions_of(module)}
    named = {name for name in TYPES if name.startswith(f"{library}.")}
    # PEP 249's names stand for every driver, whether it has them all or not.
    assert {name for name in named - existing if library != "duckdb" or name.endswith("Exception")} == set()
