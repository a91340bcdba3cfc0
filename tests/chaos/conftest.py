"""Worker processes that the chaos suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.killable_workers import Workers, workers_of


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_of("letters_worker", tmp_path_factory.mktemp("workers")) as made:
        yield made


@pytest.fixture(scope="session")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_of("tasks_worker", tmp_path_factory.mktemp("executors")) as made:
        yield made
