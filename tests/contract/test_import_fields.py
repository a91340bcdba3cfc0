"""An import line with fields of wrong types or values is rejected by its number, or is a complete letter."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive

WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        [
            "0001-01-01T00:00:00+05:00",
            "9999-12-31T23:59:59-05:00",
            "2026-01-01T00:00:00",
            "nul \0",
            "\ud800",
            "redacted",
            {"template": "a \0 b", "version": 1},
            {"template": 5, "version": 1},
            {"template": "t", "version": 1 << 31},
            {"template": "t", "version": 1e400},
            {"sink_key": 5, "superseded_at": None},
            {"sink_key": None, "superseded_at": 5},
            {"sink_key": "k", "superseded_at": "0001-01-01T00:00:00+05:00"},
            {"redacted": 5},
            {"$datetime": 5},
            {"$tuple": [1]},
        ]
    ),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
TEXTS = ["pipeline_name", "error_type", "error_message", "resolution_note", "fingerprint", "last_error", "target"]
TEXTS += ["source_table", "source_key", "position", "sink_key", "trace_id", "identity", "status", "run_id", "salt"]
MOMENTS = ["last_reprocess", "last_seen", "rejected_at", "settled_at", "superseded_at"]
OTHERS = ["format", "attempts", "reprocess_count", "seen", "cause", "raw_record", "edited_record", "context"]
NAMES = [*TEXTS, *MOMENTS, *OTHERS, "received_key"]


@pytest.fixture
def line(dlq, put):
    """Return an exported letter, and leave the store empty of open letters."""
    put(1)
    exported = json.loads(next(iter(dlq.export())))
    dlq.discard(note="x", pipeline="vendor")
    return exported


class TestImportLine:
    def test_fields_here_are_those_that_an_export_writes(self, line):
        assert set(line) <= set(NAMES)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
    @given(name=st.sampled_from(NAMES), value=WRONG, number=st.integers(0, 1 << 128))
    def test_with_a_wrong_field_is_rejected_by_its_number(self, dlq, line, name, value, number):
        changed = {**line, "identity": f"{number % (1 << 128):032x}", name: value}
        before = dlq.count()
        message, new = None, 0
        try:
            new = dlq.import_([json.dumps(changed)]).new
        except redrive.LetterError as error:
            message = str(error)
        assert message is None or message.startswith("line 1 is ")
        assert dlq.count() == before + new == len(list(dlq.each())) == len(list(dlq.export()))
        assert sum(cause.count for cause in dlq.causes()) == dlq.count()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("run_id", 5),
            ("run_id", ["a"]),
            ("rejected_at", "0001-01-01T00:00:00+05:00"),
            ("rejected_at", "2026-01-01T00:00:00"),
            ("context", "redacted"),
            ("context", [1]),
            ("cause", {"template": "a \0 b", "version": 1}),
            ("cause", {"template": "t", "version": float("inf")}),
            ("cause", {"template": "t", "version": 1 << 40}),
        ],
    )
    def test_invalid_one_is_named_and_earlier_ones_are_kept(self, dlq, line, name, value):
        first = {**line, "identity": "0" * 32}
        with pytest.raises(redrive.LetterError, match=r"line 2 is not a letter .*1 letters were imported before it"):
            dlq.import_([json.dumps(first), json.dumps({**line, "identity": "1" * 32, name: value})])
        assert dlq.count() == 2

    def test_nested_too_deeply_is_rejected(self, dlq):
        with pytest.raises(redrive.LetterError, match="line 1 is "):
            dlq.import_(['{"a":' * 200_000])
