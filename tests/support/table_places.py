"""Places of a table for suites over every table sink: a database, with or without the store in it."""

import contextlib
import sqlite3

import duckdb
import psycopg

import redrive

PLACES = ("postgresql", "postgresql with its store", "sqlite", "sqlite with its store", "duckdb")


@contextlib.contextmanager
def place_of(name, new_store, directory):
    """Yield a store, the URL of a database, and a function that executes SQL there."""
    kind, _, shared = name.partition(" ")
    with contextlib.ExitStack() as stack:
        store_url = stack.enter_context(new_store("sqlite" if kind == "duckdb" else kind))
        store = stack.enter_context(redrive.connect(store_url))
        store.listeners = ()  # alerts take a third of the time of such small runs, and these suites look at none
        if kind == "duckdb":
            url, execute = stack.enter_context(duck(directory / "t.duckdb"))
        elif kind == "sqlite":
            path = store_url.removeprefix("sqlite:///") if shared else directory / "t.db"
            url, execute = stack.enter_context(sqlite(path))
        else:
            other = store_url if shared else stack.enter_context(new_store("postgresql"))
            url, execute = stack.enter_context(postgresql(other))
        yield store, url, execute


@contextlib.contextmanager
def postgresql(url):
    with psycopg.connect(url, autocommit=True) as connection:

        def execute(statement):
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

        yield url, execute


@contextlib.contextmanager
def sqlite(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield f"sqlite:///{path}", lambda statement: connection.execute(statement).fetchall()


@contextlib.contextmanager
def duck(path):
    with duckdb.connect(str(path)) as connection:
        yield f"duckdb:///{path}", lambda statement: connection.execute(statement).fetchall()
