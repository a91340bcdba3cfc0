"""Files made at random, read by redrive and by independent readers; `tests/chaos` has the long form."""

from __future__ import annotations

import pytest

from tests.oracles.compressed import xxh64
from tests.support.examples import examples
from tests.support.file_fuzz import compression_case, ndjson_case, parquet_case, run


@pytest.mark.parametrize(
    ("case", "count"),
    [(ndjson_case, 600), (compression_case, 400), (parquet_case, 60)],
    ids=["ndjson", "compression", "parquet"],
)
def test_every_record_is_a_row_or_unreadable(tmp_path, case, count):
    run(case, range(examples(count)), tmp_path)


def test_checksum_of_the_oracle_is_that_of_the_standard():
    assert (xxh64(b""), xxh64(b"a")) == (0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B)
