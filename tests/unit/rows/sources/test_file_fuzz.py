"""Files made at random, read by redrive and by independent readers; `tests/chaos` has the long form."""

from __future__ import annotations

import pytest

from tests.oracles.compressed import xxh64
from tests.support.examples import examples
from tests.support.file_fuzz import compression_case, ndjson_case, parquet_case, run
from tests.support.parquet_fuzz import parquet_footer_case, parquet_kinds_case
from tests.support.pipeline_fuzz import ndjson_pipeline_case

CASES = {
    ndjson_case: 400,
    compression_case: 300,
    parquet_case: 40,
    parquet_kinds_case: 30,
    parquet_footer_case: 20,
    ndjson_pipeline_case: 3,
}
# Numbers that have shown an error: metadata that is not UTF-8, metadata of a column that is damaged, numbers of rows
# that differ, the name of a zone.
FOOTERS = (77, 78, 177, 518, 522)


@pytest.mark.parametrize(("case", "count"), CASES.items(), ids=[case.__name__ for case in CASES])
def test_every_record_is_a_row_or_unreadable(tmp_path, case, count):
    run(case, range(examples(count)), tmp_path)


def test_damaged_footer_is_rejected_or_read(tmp_path):
    run(parquet_footer_case, FOOTERS, tmp_path)


def test_checksum_of_the_oracle_is_that_of_the_standard():
    assert (xxh64(b""), xxh64(b"a")) == (0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B)
