"""The schema's history, one file a step, run by Alembic; see `redrive.store.migrate`."""
