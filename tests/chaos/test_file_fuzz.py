"""Random files, read by redrive and by independent readers, at full count: with CSV, 100,000 cases."""

from __future__ import annotations

import pytest

from tests.support.file_fuzz import compression_case, ndjson_case, parquet_case, run
from tests.support.parquet_fuzz import parquet_footer_case, parquet_kinds_case
from tests.support.pipeline_fuzz import ndjson_pipeline_case

pytestmark = pytest.mark.chaos

CASES = {
    ndjson_case: 3_000,
    compression_case: 2_000,
    parquet_case: 1_000,
    parquet_kinds_case: 1_000,
    parquet_footer_case: 1_000,
    ndjson_pipeline_case: 50,
}


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize(("case", "count"), CASES.items(), ids=[case.__name__ for case in CASES])
def test_every_record_is_a_row_or_unreadable(tmp_path, case, count, part):
    run(case, range(part * count, (part + 1) * count), tmp_path)
