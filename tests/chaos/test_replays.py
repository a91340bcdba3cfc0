"""Files, headers and keys change between runs and replays; the table ends as a model in plain dicts says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.examples import examples
from tests.support.replay_world import BATCHES, STEPS, must_end_as_the_oracle_says
from tests.support.stores import NewStore

pytestmark = pytest.mark.chaos


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, batch=BATCHES)
def test_table_ends_as_the_oracle_says(new_store: NewStore, tmp_path: Path, steps: Any, batch: int) -> None:
    must_end_as_the_oracle_says(new_store, tmp_path, steps, batch)
