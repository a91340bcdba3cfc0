"""What Alembic runs for each migration: on the connection, and in the transaction, that `migrate` opened."""

from alembic import context

from redrive.store.migrate import VERSION_TABLE
from redrive.store.schema import SCHEMA, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA if connection.dialect.name == "postgresql" else None,
)
context.run_migrations()
