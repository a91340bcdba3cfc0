"""However a task ends, no secret in its texts is stored, logged or reported, on both databases."""

from __future__ import annotations

import io
import json
import logging
import traceback

import pytest
import sqlalchemy

import redrive
from redrive.cli.tasks.view import TaskView
from redrive.observe.log import JsonFormatter
from redrive.store.schema import metadata
from redrive.testing import set_testing
from tests.support import leaky_flow
from tests.support.flows import stopped

AS_RECEIVED = {"task_runs.params", "tasks.input", "tasks.result", "dead_letter_queue.raw_record"}
"""What the tasks were given and have returned is kept, so that it can be tried again."""


@pytest.fixture
def store(store_url):
    with redrive.connect(store_url, redact=["card"]) as opened:
        yield opened


@pytest.fixture
def log():
    """All that is logged, as text and as JSON."""
    lines = io.StringIO()
    handlers = [logging.StreamHandler(lines), logging.StreamHandler(lines)]
    handlers[0].setFormatter(JsonFormatter())
    logger = logging.getLogger("redrive")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    for handler in handlers:
        logger.addHandler(handler)
    yield lines
    logger.setLevel(level)
    for handler in handlers:
        logger.removeHandler(handler)


def columns_of(store):
    """The values of all columns of the store, by table and column."""

    def read(connection):
        found = {}
        for table in metadata.sorted_tables:
            for row in connection.execute(sqlalchemy.select(table)):
                for column, value in row._mapping.items():
                    found.setdefault(f"{table.name}.{column}", []).append(str(value))
        return found

    return store.database.read(read)


def test_no_secret_of_a_task_is_stored_logged_or_reported(store, log, tmp_path):
    events = []
    forget = redrive.on_event(lambda event: events.append(repr(event)))
    with set_testing():
        error = stopped(leaky_flow.flow, store=store)
    forget()
    columns = columns_of(store)
    run = error.report.run_id
    ended = {row.name: str(row.state) for row in store.tasks.find(run, limit=100)}
    view = TaskView(store)
    shown = [json.dumps(view.details(store.tasks.get(run, name)), default=str) for name in ended]
    texts = {
        "log": log.getvalue(),
        "events": "\n".join(events),
        "error": "".join(traceback.format_exception_only(error)) + str(error.report),
        "shown": "\n".join(shown),
        **{name: "\n".join(values) for name, values in columns.items() if name not in AS_RECEIVED},
    }
    leaks = {name: text[max(0, at - 90) : at + 20] for name, text in texts.items() if (at := text.find("Zq")) >= 0}
    assert leaks == {}
    assert set(leaky_flow.ENDS) <= set(ended)
    assert ended["raises"] == ended["exits_with_text"] == "DEAD_LETTER"
    for name in ("tasks.error", "task_attempts.error", "task_attempts.trace", "task_changes.cause", "log", "events"):
        assert "cannot log in: postgresql://etl:***@db/prod" in texts[name], name
    assert "cannot settle ***" in texts["tasks.error"]
