"""Errors of a real PostgreSQL."""

from __future__ import annotations

import threading

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa

from redrive import Classifier, classify
from redrive.model.calls import Kind


@pytest.fixture
def connection(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS deliveries")
        connection.execute("CREATE TABLE deliveries (id int PRIMARY KEY, fee numeric NOT NULL CHECK (fee >= 0))")
        connection.execute("INSERT INTO deliveries VALUES (1, 1), (2, 2)")
        yield connection


def refusal(connection, *statement):
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(*statement)
    return caught.value


@pytest.mark.parametrize(
    ("statement", "kind", "rule", "detail"),
    [
        (
            "INSERT INTO deliveries VALUES (1, 5)",
            "row",
            "sqlstate.23*",
            'duplicate key value violates unique constraint "deliveries_pkey"; Key (id)=(1) already exists.',
        ),
        ("INSERT INTO deliveries VALUES (3, NULL)", "row", "sqlstate.23*", "null value in column"),
        ("INSERT INTO deliveries VALUES (3, -1)", "row", "sqlstate.23*", "violates check constraint"),
        (
            "INSERT INTO deliveries VALUES (3, 'N/A')",
            "row",
            "sqlstate.22*",
            'invalid input syntax for type numeric: "N/A"',
        ),
        ("SELECT 1/0", "row", "sqlstate.22*", "division by zero"),
        ("SELEC 1", "permanent", "sqlstate.42*", "syntax error"),
        ("SELECT * FROM nowhere", "permanent", "sqlstate.42*", "does not exist"),
        ("SELECT * FROM nowhere.nothing", "permanent", "sqlstate.42*", "does not exist"),
        ("CREATE TABLE nowhere.nothing (i int)", "permanent", "sqlstate.3F000", "does not exist"),
        ("DO $$ BEGIN RAISE EXCEPTION 'fee not plausible'; END $$", "row", "sqlstate.P0001", "fee not plausible"),
    ],
)
def test_statement_rejected_by_postgres_is_judged_by_its_code(connection, statement, kind, rule, detail):
    verdict = classify(refusal(connection, statement))
    assert (verdict.kind, verdict.rule) == (kind, rule)
    assert detail in verdict.detail


def test_unavailable_lock_and_slow_statement_are_judged_by_code(connection, postgres_url):
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM deliveries WHERE id = 1 FOR UPDATE")
        verdict = classify(refusal(connection, "SELECT * FROM deliveries WHERE id = 1 FOR UPDATE NOWAIT"))
        assert (verdict.kind, verdict.rule) == (Kind.TRANSIENT, "sqlstate.55P03")
        connection.execute("SET statement_timeout = '10ms'")
        verdict = classify(refusal(connection, "UPDATE deliveries SET fee = 9 WHERE id = 1"))
        assert (verdict.kind, verdict.rule) == (Kind.AMBIGUOUS, "sqlstate.57014")


def test_real_deadlock_is_retried_at_once(connection, postgres_url):
    both_hold_one, errors = threading.Barrier(2), []

    def cross(first, second):
        with psycopg.connect(postgres_url) as own:
            own.execute("UPDATE deliveries SET fee = 0 WHERE id = %s", [first])
            both_hold_one.wait(30)
            try:
                own.execute("UPDATE deliveries SET fee = 0 WHERE id = %s", [second])
            except psycopg.Error as error:
                errors.append(error)

    threads = [threading.Thread(target=cross, args=order) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [classify(error).rule for error in errors] == ["sqlstate.40P01"]
    assert classify(errors[0]).kind is Kind.RETRY_NOW


def test_real_serialization_failure_is_retried_at_once(connection, postgres_url):
    with psycopg.connect(postgres_url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT * FROM deliveries")
        connection.execute("UPDATE deliveries SET fee = 5 WHERE id = 1")
        verdict = classify(refusal(other, "UPDATE deliveries SET fee = 6 WHERE id = 1"))
    assert (verdict.kind, verdict.rule) == (Kind.RETRY_NOW, "sqlstate.40001")


def test_connection_ended_by_the_server_is_transient(connection, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as victim:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])
        ended = refusal(victim, "SELECT 1")
        assert (classify(ended).kind, classify(ended).rule) == (Kind.TRANSIENT, "sqlstate.57P01")
        assert classify(refusal(victim, "SELECT 1")).kind is Kind.TRANSIENT


def cannot_connect(url):
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(url)
    return caught.value


async def cannot_connect_by_asyncpg(url):
    with pytest.raises((asyncpg.PostgresError, OSError)) as caught:
        await asyncpg.connect(url)
    return caught.value


async def test_bad_credentials_are_auth_and_the_password_is_not_shown(postgres_url):
    wrong = postgres_url.replace("correct-horse", "battery-staple")
    for error in (cannot_connect(wrong), await cannot_connect_by_asyncpg(wrong)):
        verdict = classify(error)
        assert verdict.kind is Kind.AUTH
        assert "password authentication failed" in verdict.reason
        assert "battery-staple" not in str(verdict)


async def test_unknown_database_is_permanent(postgres_url):
    for error in (cannot_connect(f"{postgres_url}_x"), await cannot_connect_by_asyncpg(f"{postgres_url}_x")):
        assert classify(error).kind is Kind.PERMANENT


async def test_unreachable_server_is_transient(refused_port):
    url = f"postgresql://etl@127.0.0.1:{refused_port}/lake"
    for error in (cannot_connect(url), await cannot_connect_by_asyncpg(url)):
        verdict = classify(error)
        assert (verdict.kind, verdict.reason) == (Kind.TRANSIENT, "connection refused")


def test_sqlalchemy_gets_the_same_verdict(connection, postgres_url):
    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as own, pytest.raises(sa.exc.IntegrityError) as duplicate:
        own.execute(sa.text("INSERT INTO deliveries VALUES (1, 5)"))
    with engine.connect() as own:
        pid = own.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(sa.exc.DBAPIError) as ended:
            own.execute(sa.text("SELECT 1"))
    engine.dispose()
    assert (classify(duplicate.value).kind, classify(duplicate.value).rule) == (Kind.ROW, "sqlstate.23*")
    assert "Key (id)=(1) already exists." in classify(duplicate.value).detail
    assert classify(ended.value).kind is Kind.TRANSIENT


def test_rule_on_the_drivers_class_applies_below_sqlalchemy(connection, postgres_url):
    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as own, pytest.raises(sa.exc.IntegrityError) as caught:
        own.execute(sa.text("INSERT INTO deliveries VALUES (1, 5)"))
    engine.dispose()
    classifier = Classifier().rule(psycopg.errors.UniqueViolation, kind="discard")
    assert classifier.classify(caught.value).kind is Kind.DISCARD
    assert classifier.classify(refusal(connection, "INSERT INTO deliveries VALUES (3, -1)")).kind is Kind.ROW
