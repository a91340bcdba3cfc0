"""Sinks: where rows are written. `sink` has the protocols.

`table` selects the sink of a database by its URL: `duckdb`, `postgres`, `sqlite`, or `sqlalchemy` for any other. Those
with savepoints share `sql_table`. A package of a database has a `sink` (connection, schema, statements), a `load` (one
batch, and the rows it rejects), its `catalog` and its `values`. `parquet` writes a directory of files.

Shared by all: `mode` (which rows are written, kept or deleted), `keys` (keys as the table compares them),
`table_schema`, `infer_types` (types of new columns), `batch_log` (appended batches), `exact` (values that a column
would change) and `values` (values of Python as databases take them).
"""
