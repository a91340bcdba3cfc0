"""Classifying imports nothing that the program has not imported, and the package has no side effects."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import redrive

pytestmark = [pytest.mark.process, pytest.mark.bare]

PACKAGE = Path(redrive.__file__).parent / "classify"

FOREIGN = (
    *("httpx", "requests", "aiohttp", "urllib3", "sqlalchemy", "psycopg", "asyncpg", "pydantic", "duckdb", "pymysql"),
    *("botocore", "confluent_kafka", "grpc", "asyncio", "sqlite3", "socket", "ssl", "json", "email", "http"),
)

FORBIDDEN = {
    *("time", "random", "asyncio", "threading", "socket", "sqlite3", "subprocess", "sqlalchemy", "httpx", "requests"),
    *(
        "aiohttp",
        "urllib3",
        "psycopg",
        "asyncpg",
        "pydantic",
        "duckdb",
        "pymysql",
        "botocore",
        "confluent_kafka",
        "grpc",
    ),
}


def loaded_by(program):
    report = f"{program}\nimport sys; print([name for name in {FOREIGN!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", report], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_the_package_loads_no_tables_or_libraries():
    program = (
        "import sys, redrive.classify\nprint([name for name in sys.modules if name.startswith('redrive.classify.')])"
    )
    assert loaded_by(program) == "[]\n[]"


@pytest.mark.parametrize(
    "failure", ["ValueError('N/A')", "OSError(28, 'full')", "TimeoutError()", "Exception('unknown')", "MemoryError()"]
)
def test_classifying_a_builtin_error_loads_no_library(failure):
    assert loaded_by(f"from redrive.classify import classify\nclassify({failure})") == "[]"


def imported_by(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_package_is_pure(path):
    assert FORBIDDEN.isdisjoint(imported_by(path.read_text()))


def test_clock_is_read_in_one_place():
    askers = [path.name for path in PACKAGE.rglob("*.py") if ".now(" in path.read_text()]
    assert askers == ["classifier.py"]
