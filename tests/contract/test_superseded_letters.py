"""A letter is superseded once its key has been written after it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy

import redrive


@pytest.fixture(params=["shared", "apart"])
def url(request: pytest.FixtureRequest, store_url: str, new_store: Any) -> Any:
    def create(url: str) -> str:
        engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE deliveries (id TEXT PRIMARY KEY, fee INTEGER)"))
        engine.dispose()
        return url

    if request.param == "shared":
        yield create(store_url)
        return
    with new_store("sqlite") as other:
        yield create(other)


def check_fee(record: dict[str, Any]) -> None:
    if record["fee"] is None:
        raise ValueError("no fee")


def run(store: redrive.Store, url: str, *fees: tuple[str, int | None], batch: int = 100, **options: Any) -> Any:
    records = [{"id": name, "fee": fee} for name, fee in fees]
    source = redrive.rows.records(records, name="in")
    sink = redrive.rows.table(url, "deliveries", key="id")
    options = {"validate": check_fee, "batch": batch, "gate": redrive.Gate(abort=1), "store": store} | options
    return redrive.Pipeline("vendor", source=source, sink=sink, **options).run()


def superseded(store: redrive.Store) -> dict[str, bool]:
    return {letter.key: letter.superseded_at is not None for letter in store.dlq.each(status=("pending", "escalated"))}


def test_key_written_by_a_later_run(store, url):
    run(store, url, ("a", None), ("b", None))
    assert superseded(store) == {"a": False, "b": False}
    run(store, url, ("a", 1), ("c", None))
    assert superseded(store) == {"a": True, "b": False, "c": False}


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_later_row_of_the_same_run(store, url, batch):
    run(store, url, ("a", None), ("a", 1), ("b", 1), ("b", None), ("c", None), batch=batch)
    assert superseded(store) == {"a": True, "b": False, "c": False}


def test_key_rejected_again_is_not_superseded_any_more(store, url):
    run(store, url, ("a", None))
    run(store, url, ("a", 1))
    assert superseded(store) == {"a": True}
    run(store, url, ("a", None))
    assert superseded(store) == {"a": False}


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("rule", ["last", "first"])
@pytest.mark.parametrize(("rows", "expected"), [((("a", None), ("b", 1)), True), ((("b", 1), ("a", None)), False)])
def test_edited_letter_comes_again_beside_its_new_key(store, url, batch, rule, rows, expected):
    run(store, url, ("a", None))
    (letter,) = store.dlq.each()
    store.dlq.edit(letter.id, patch={"id": "b"})
    run(store, url, *rows, batch=batch, on_duplicate=rule)
    assert superseded(store) == {"a": expected}


@pytest.mark.parametrize("undo", [{"patch": {"id": "a"}}, {"undo": True}], ids=["by another edit", "undone"])
def test_edit_taken_back_after_the_row_came_again(store, url, undo):
    run(store, url, ("a", None))
    run(store, url, ("a", 1))
    (letter,) = store.dlq.each()
    store.dlq.edit(letter.id, patch={"id": "b"})
    run(store, url, ("a", None))
    store.dlq.edit(letter.id, **undo)
    assert superseded(store) == {"a": False}


def test_escalated_letter_is_marked_too(store, url):
    run(store, url, ("a", None))
    store.dlq.escalate(note="for the vendor", pipeline="vendor")
    run(store, url, ("a", 1))
    assert superseded(store) == {"a": True}


def test_letter_of_another_pipeline_is_not(store, url):
    store.dlq.put({"id": "a"}, "no fee", pipeline="payments", key="a")
    run(store, url, ("a", 1))
    assert superseded(store) == {"a": False}


class TestKeyBehindATransform:
    """A transform hides the key of a rejected record, unless it leaves the keys of other records as they are."""

    @pytest.mark.parametrize("batch", [1, 2, 100])
    def test_transform_that_keeps_the_key(self, store, url, batch):
        double = lambda row: {**row, "fee": row["fee"] * 2}  # noqa: E731
        run(store, url, ("a", 1), ("b", None), ("c", None), transform=double, batch=batch)
        run(store, url, ("b", 2), transform=double, batch=batch)
        assert superseded(store) == {"b": True, "c": False}

    @pytest.mark.parametrize("batch", [2, 100])
    def test_transform_that_changes_the_key(self, store, url, batch):
        swap = lambda row: {**row, "id": {"a": "b", "b": "a"}.get(row["id"], row["id"])}  # noqa: E731
        run(store, url, ("a", 1), ("b", None), transform=swap, batch=batch)
        run(store, url, ("a", 2), transform=swap, batch=batch)
        assert superseded(store) == {"b": False}


def test_long_keys_are_compared_whole(store, url):
    long = "k" * 600
    run(store, url, (f"{long}1", None), (f"{long}2", None))
    run(store, url, (f"{long}1", 1))
    assert sorted(letter.superseded_at is not None for letter in store.dlq.each()) == [False, True]
