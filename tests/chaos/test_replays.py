"""Files, columns and keys change between runs and replays; the table ends as a model in plain dicts expects."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.examples import examples
from tests.support.replay_world import BATCHES, STEPS, must_end_as_the_oracle_says
from tests.support.stores import NewStore

# One of these examples is some thirty steps: shrinking takes minutes, and is left to the full count.
short = settings(
    max_examples=examples(8),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "redrive")  # hundreds of runs with rejected rows


@short
@given(steps=STEPS, batch=BATCHES)
def test_table_equals_oracle(new_store: NewStore, tmp_path: Path, steps: Any, batch: int) -> None:
    must_end_as_the_oracle_says(new_store, tmp_path, steps, batch)


@pytest.mark.chaos
@settings(short, max_examples=examples(60), phases=tuple(Phase))
@given(steps=STEPS, batch=BATCHES)
def test_table_equals_oracle_at_full_count(new_store: NewStore, tmp_path: Path, steps: Any, batch: int) -> None:
    must_end_as_the_oracle_says(new_store, tmp_path, steps, batch)
