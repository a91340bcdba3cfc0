"""The page about observing is complete: every event with its fields, every metric with its labels."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from redrive.model.calls import Event
from redrive.observe.figures import Figures
from redrive.observe.metric_families import families

PAGE = (Path(__file__).parents[3] / "docs" / "observe.md").read_text()


def rows(heading):
    """The cells of the first table under a heading."""
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`.+) \|$", part, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def words(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


EVENTS = {one.__name__: one for one in get_args(Event)}


def test_every_event_is_in_the_table_once_and_no_other():
    assert sorted(words(row[0])[0] for row in rows("Events")) == sorted(EVENTS)


@pytest.mark.parametrize(("name", "has"), [(words(row[0])[0], words(row[1])) for row in rows("Events")])
def test_event_has_the_fields_of_the_table(name, has):
    assert tuple(field.name for field in fields(EVENTS[name])) == has


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_event_cannot_be_changed(name):
    assert EVENTS[name].__dataclass_params__.frozen


def test_metric_is_in_the_table_with_type_and_labels():
    suffix = {"counter": "_total", "info": "_info"}
    there = []
    for one in families(Figures(database="", schema_version=""), took=0.0):
        labels = getattr(one, "_labelnames", ()) or (("database", "schema_version") if one.type == "info" else ())
        there.append((one.name + suffix.get(one.type, ""), one.type, tuple(labels)))
    listed = [(words(cells[0])[0], cells[1], words(cells[2])) for cells in rows("Prometheus")]
    assert listed == there
