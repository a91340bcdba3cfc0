"""Migrates a database to the schema that this program expects, and rejects one that is newer."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from redrive.errors import SchemaMismatch
from redrive.store.schema import SCHEMA

VERSION = "0005"
"""The newest step under `migrations/versions`; a test compares the two."""
VERSION_TABLE = "redrive_schema"
SCRIPTS = str(Path(__file__).parent / "migrations")


def version(connection: Connection) -> str | None:
    """Return the schema version of a database; None if it has no redrive tables."""
    schema = SCHEMA if connection.dialect.name == "postgresql" else None
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    where = f"{SCHEMA}.{VERSION_TABLE}" if schema else VERSION_TABLE
    return connection.execute(text(f"SELECT version_num FROM {where}")).scalar()


def is_current(current: str | None, *, where: str) -> bool:
    """Return whether the schema is current.

    Raises:
        SchemaMismatch: the schema is newer.
    """
    if current is not None and current > VERSION:
        raise SchemaMismatch(
            f"{where} has schema version {current}, and this redrive knows none beyond {VERSION}: "
            "upgrade redrive (pip install --upgrade redrive), or restore a backup from before the migration; "
            "nothing was changed"
        )
    return current == VERSION


def upgrade(connection: Connection) -> None:
    """Run every missing step, in the caller's transaction."""
    from alembic import command  # a quarter of a second that only a migration pays
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", SCRIPTS.replace("%", "%%"))
    command.upgrade(config, "head")
