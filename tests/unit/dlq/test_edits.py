"""Records are corrected without changing the original, and every change is listed."""

from __future__ import annotations

import copy
import datetime
import decimal
import json
import math
import pickle
import re
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.dlq.edit.corrections import diff, expression, merge_patch
from redrive.model.letters import ABSENT, Change
from redrive.store.encoding import encode


@pytest.mark.parametrize(
    ("record", "patch", "result"),
    [
        # The examples of RFC 7396.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        # And one of Python.
        ({"fee": decimal.Decimal(1), 5: (1,)}, types.MappingProxyType({5: b"x"}), {"fee": decimal.Decimal(1), 5: b"x"}),
    ],
)
def test_merge_patch_follows_the_standard(record, patch, result):
    before = copy.deepcopy(record)
    assert merge_patch(record, patch) == result
    assert record == before


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ('{**record, "fee": 0}', {"fee": 0, "tags": ["a"]}),
        ('{**record, "fee": Decimal(record["fee"].replace(",", "."))}', {"fee": decimal.Decimal("1.5"), "tags": ["a"]}),
        ("\n  {key: str(value) for key, value in record.items()}\n", {"fee": "1,5", "tags": "['a']"}),
        ('record.update(fee=1) or record["tags"].append("b") or record', {"fee": 1, "tags": ["a", "b"]}),
        ('[re.sub(",", ".", each) for each in [record["fee"]] if record]', ["1.5"]),
        ("(lambda: record['fee'])()", "1,5"),
        ("date(2026, 7, 1) + timedelta(days=1), datetime.min.year", (datetime.date(2026, 7, 2), 1)),
        ('json.loads("[1]") + [math.pi, sorted({2, 1})]', [1, math.pi, [1, 2]]),
        ("None", None),
    ],
)
def test_expression_returns_a_new_record_and_keeps_the_old_one(source, result):
    record = {"fee": "1,5", "tags": ["a"]}
    edit = expression(source)
    assert edit(record) == result
    assert edit(record) == result
    assert record == {"fee": "1,5", "tags": ["a"]}


def test_expression_run_leaves_no_state_for_the_next():
    edit = expression("(globals().get('seen'), seen := record)[0]")
    assert edit(1) is None
    assert edit(2) is None


def test_error_of_an_expression_is_raised():
    with pytest.raises(KeyError, match="fee"):
        expression('record["fee"]')({})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "the edit is empty"),
        ("  ", "the edit is empty"),
        ('record["fee"] = 0', "the edit is a statement; .* instead of: record.*fee.* = 0$"),
        ("import os\nrecord", "the edit is a statement; .* instead of: import os record$"),
        ("record[", r"never closed \(line 1, column 7\): record >>> \["),
        ("{**record,\n 'a' 1}", r"\(line 2, column \d\): "),
        ("record +", "no Python expression: invalid syntax"),
        ("await record", "no Python expression"),
        ("1\0", "null bytes"),
        ("(" * 10_000, "edit"),
        ("-" * 10_000 + "1", "edit"),
    ],
)
def test_invalid_expression_is_rejected_with_its_position(source, words):
    with pytest.raises(ValueError, match=words) as caught:
        expression(source)
    assert "\n" not in str(caught.value)


def test_edit_is_text():
    with pytest.raises(TypeError, match="Python text"):
        expression(len)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"c": 3, "b": 4}, [("a", 1, ABSENT), ("b", 2, 4), ("c", ABSENT, 3)]),
        (
            {"customer": {"lines": [0, 1, {"fee": "N/A"}]}},
            {"customer": {"lines": [0, 1, {"fee": 5}]}},
            [("customer.lines[2].fee", "N/A", 5)],
        ),
        ([1, 2], [1], [("[1]", 2, ABSENT)]),
        ([1], [1, [2]], [("[1]", ABSENT, [2])]),
        ({"a": (1, 2)}, {"a": (1, 3)}, [("a[1]", 2, 3)]),
        ({"a": [1]}, {"a": (1,)}, [("a", [1], (1,))]),
        ({"a b": {"c.d": 1}}, {"a b": {"c.d": 2}}, [('["a b"]["c.d"]', 1, 2)]),
        ({"": 1, "größe": 1}, {}, [('[""]', 1, ABSENT), ("größe", 1, ABSENT)]),
        ({"a": {5: 1}}, {"a": {5: 2}}, [("a[5]", 1, 2)]),
        ({1: 1}, {True: 1}, [("[1]", 1, ABSENT), ("[True]", ABSENT, 1)]),
        (1, 2, [("", 1, 2)]),
        ({"a": None}, {}, [("a", None, ABSENT)]),
        ({"a": {1, 2}}, {"a": {1, 3}}, [("a", {1, 2}, {1, 3})]),
    ],
)
def test_diff_names_each_path_with_old_and_new_value(before, after, changes):
    assert diff(before, after) == [Change(*change) for change in changes]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (1, decimal.Decimal(1)),
        (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        (0.0, -0.0),
        ("a", b"a"),
        (datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC), datetime.datetime(2026, 7, 1)),
        ({1}, frozenset({1})),
        ([], ()),
        ({}, None),
    ],
)
def test_equal_values_of_other_types_are_a_change(one, other):
    assert diff({"a": one}, {"a": other}) == [Change("a", one, other)]
    assert diff({"a": [one]}, {"a": [one]}) == []


def test_nan_is_nan():
    assert diff({"a": math.nan}, {"a": float("nan")}) == []
    assert diff({"a": decimal.Decimal("NaN")}, {"a": decimal.Decimal("NaN")}) == []


def test_absent_is_a_falsy_singleton_with_a_clear_repr():
    assert not ABSENT
    assert repr(ABSENT) == "absent"
    assert copy.deepcopy(ABSENT) is ABSENT
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT


STEP = re.compile(r'\.?([^\W\d]\w*)|\[("(?:[^"\\]|\\.)*")\]|\[([^"\]][^\]]*)\]')


def steps(path):
    found = list(STEP.finditer(path))
    assert "".join(match[0] for match in found) == path
    return [match[1] or (json.loads(match[2]) if match[2] else eval(match[3])) for match in found]


def apply(before, changes):
    """What the changes make of a record; lists shrink from their end."""

    def put(node, way, value):
        if not way:
            return value
        step, *rest = way
        parts = list(node) if isinstance(node, tuple) else node
        if value is ABSENT and not rest:
            # The first of several that go takes the rest along.
            parts = {k: v for k, v in parts.items() if k != step} if isinstance(parts, dict) else parts[:step]
        elif isinstance(parts, list) and step == len(parts):
            parts = [*parts, value]
        elif isinstance(parts, dict):
            parts = {**parts, step: put(parts.get(step), rest, value)}
        else:
            parts = [*parts[:step], put(parts[step], rest, value), *parts[step + 1 :]]
        return tuple(parts) if isinstance(node, tuple) else parts

    for change in changes:
        before = put(before, steps(change.path), change.after)
    return before


scalars = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3) | st.decimals() | st.dates()
)
keys = st.sampled_from(["a", "b", "größe"]) | st.text(max_size=3) | st.integers(0, 2) | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def unordered(value):
    """A form in which the order of keys does not count and types do."""
    if isinstance(value, dict):
        return dict, frozenset((type(key), key, unordered(each)) for key, each in value.items())
    return (type(value), tuple(map(unordered, value))) if isinstance(value, list | tuple) else encode(value)


@given(values, values)
def test_changes_turn_one_record_into_the_other(before, after):
    changes = diff(before, after)
    assert unordered(apply(before, changes)) == unordered(after)
    assert (changes == []) == (unordered(before) == unordered(after))
    assert repr(diff(before, after)) == repr(changes)


@given(values)
def test_record_does_not_differ_from_its_copy(value):
    assert diff(value, copy.deepcopy(value)) == []
