"""Failures that need no port: locks, conflicts and constraints of databases in files, statuses of a gRPC server."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.packs.http_clients import wait

SCENES: dict[tuple[str, str], Callable[[], object]] = {}


def scene(library: str, failure: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    """Register the function that provokes this failure in an empty directory."""

    def register(function: Callable[[Path], object]) -> Callable[[Path], object]:
        def play() -> object:
            with tempfile.TemporaryDirectory() as directory:
                return function(Path(directory))

        SCENES[library, failure] = play
        return function

    return register


@scene("sqlite3", "database locked by another connection")
def _(directory):
    import sqlite3

    writer = sqlite3.connect(directory / "a.db", isolation_level=None)
    other = sqlite3.connect(directory / "a.db", isolation_level=None, timeout=0)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE t (a)")
    finally:
        writer.close()
        other.close()


def _run_sqlite(*statements):
    import contextlib
    import sqlite3

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)


@scene("sqlite3", "duplicate key")
def _(_):
    _run_sqlite("CREATE TABLE t (a PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1)")


@scene("sqlite3", "no such table")
def _(_):
    _run_sqlite("SELECT * FROM t")


@scene("sqlite3", "file is not a database")
def _(directory):
    import contextlib
    import sqlite3

    (directory / "a.db").write_text("name,amount\n" * 200)
    with contextlib.closing(sqlite3.connect(directory / "a.db")) as connection:
        connection.execute("SELECT * FROM t")


def _run_duckdb(*statements):
    import duckdb

    with duckdb.connect() as connection:
        for statement in statements:
            connection.execute(statement)


@scene("duckdb", "conflicting transactions")
def _(directory):
    import duckdb

    with duckdb.connect(str(directory / "a.db")) as first, first.cursor() as second:
        first.execute("CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1)")
        for connection in (first, second):
            connection.execute("BEGIN")
        first.execute("UPDATE t SET a = 2")
        second.execute("UPDATE t SET a = 3")


@scene("duckdb", "duplicate key")
def _(_):
    _run_duckdb("CREATE TABLE t (a INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1)")


@scene("duckdb", "no such table")
def _(_):
    _run_duckdb("SELECT * FROM t")


@scene("duckdb", "value not convertible")
def _(_):
    _run_duckdb("SELECT CAST('n/a' AS INTEGER)")


@scene("duckdb", "file locked by another process")
def _(directory):
    import duckdb

    path = str(directory / "a.db")
    program = f"import duckdb; connection = duckdb.connect({path!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        try:
            duckdb.connect(path)
        finally:
            other.communicate(b"\n")


def _delta_table(directory):
    import deltalake
    import pyarrow

    deltalake.write_deltalake(directory / "t", pyarrow.table({"a": [1, 2]}))
    return deltalake.DeltaTable(directory / "t")


@scene("deltalake", "two writers change the same file")
def _(directory):
    import deltalake

    first = _delta_table(directory)
    second = deltalake.DeltaTable(directory / "t")
    first.delete("a = 1")
    second.delete("a = 2", commit_properties=deltalake.CommitProperties(max_commit_retries=0))


@scene("deltalake", "schema that does not fit")
def _(directory):
    import deltalake
    import pyarrow

    _delta_table(directory)
    deltalake.write_deltalake(directory / "t", pyarrow.table({"b": ["x"]}), mode="append")


@scene("deltalake", "table that is not there")
def _(directory):
    import deltalake

    deltalake.DeltaTable(directory / "missing")


def _grpc_status(name):
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    def refuse(_, context):
        context.abort(getattr(grpc.StatusCode, name), "refused")

    class Refusing(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(refuse)

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[Refusing()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                channel.unary_unary("/bank.Ledger/Post")(b"", timeout=wait() * 20)
        finally:
            server.stop(None).wait()


for _name in (
    *("UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "INVALID_ARGUMENT"),
    *("ABORTED", "INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"),
):
    SCENES["grpc", f"status {_name}"] = lambda name=_name: _grpc_status(name)
