"""Sources: where rows are read. `source` has the protocols.

A package for each: `csv`, `ndjson` and `parquet` files, which share `files` (globs, compression, identity); `pages` of
an API, `query` of a database, and `records` of a program. `source` in each has the public function and the source,
which opens a reading at a position. A reading returns batches, each with the position after it for the checkpoint.
"""
