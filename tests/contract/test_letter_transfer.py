"""Export of letters from one store and import into another."""

import datetime as dt
import decimal
import json
import math
from dataclasses import replace

import pytest

import redrive

RECORD = {
    "bytes": b"\xff\x00",
    "decimal": decimal.Decimal("1.10"),
    "date": dt.date(2026, 7, 1),
    "at": dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC),
    "inf": math.inf,
    "text": "naïve \0 \ud800",
    "nested": [{"a": (1, 2)}, None],
}


@pytest.fixture
def other(tmp_path):
    with redrive.connect(tmp_path / "other.db") as store:
        yield store.dlq


def plain(letter):
    return {name: getattr(letter, name) for name in letter.__slots__ if name != "id"}


def test_export_and_import_lose_nothing(dlq, other):
    dlq.put(RECORD, "bad", pipeline="p", key="k1", position=3, source="s", attempts=2)
    dlq.put(RECORD, "bad", pipeline="p", key="k1", position=3, source="s", attempts=2)
    dlq.put(math.nan, ValueError("worse"), pipeline="p", key="k2", run_id="7f0a7e3e-9d7c-4a51-8a5e-0d9b0f0a1b2c")
    dlq.put({"a": 1}, "bad", pipeline="q", key="k3")
    dlq.edit(dlq.find(key="k1")[0].id, patch={"decimal": decimal.Decimal("2.0")})
    dlq.discard(note="nein", key="k3")
    dlq.replay(lambda records: ["no"], key="k1", dry_run=False)
    lines = list(dlq.export())
    assert all(json.loads(line)["format"] == 1 for line in lines)
    done = other.import_(lines)
    assert (done.new, done.known) == (3, 0)
    for mine, theirs in zip(dlq.find(), other.find(), strict=True):
        assert repr(plain(mine)) == repr(plain(theirs))
    assert [(cause.fingerprint, cause.message, cause.by_status) for cause in dlq.causes()] == [
        (cause.fingerprint, cause.message, cause.by_status) for cause in other.causes()
    ]


def test_importing_twice_adds_nothing(dlq, other, put):
    put(5)
    dlq.discard(note="x", key="D-0")
    lines = list(dlq.export())
    other.import_(lines)
    again = other.import_(lines)
    assert (again.new, again.known) == (0, 5)
    assert dlq.import_(lines).new == 0
    assert other.count() == 5


class TestExistingLetter:
    def test_is_unchanged_and_counted_if_different(self, dlq, other, put):
        put(4)
        other.import_(dlq.export())
        dlq.discard(note="here", key="D-0")
        dlq.edit(dlq.find(key="D-1")[0].id, patch={"fee": "1"})
        dlq.put(
            {"id": "D-2", "fee": "n.v."}, "fee: not a number", pipeline="vendor", source="deliveries.csv", key="D-2"
        )
        before = [plain(letter) for letter in other.each()]
        done = other.import_(dlq.export())
        assert (done.new, done.known, done.differing) == (0, 4, 3)
        assert [plain(letter) for letter in other.each()] == before

    @pytest.mark.parametrize("status", ["pending", "escalated"])
    def test_is_not_doubled_by_an_open_one_of_the_same_record(self, dlq, other, put, status):
        put(1)
        if status == "escalated":
            dlq.escalate(note="x", key="D-0")
        other.put({"id": "D-0"}, "fee: not a number", pipeline="vendor", source="deliveries.csv", key="D-0")
        for _ in range(2):
            done = other.import_(dlq.export())
            assert (done.new, done.known, done.differing) == (0, 1, 1)
        assert [(letter.status, letter.record) for letter in other.each()] == [("pending", {"id": "D-0"})]

    @pytest.mark.parametrize("statuses", [("escalated", "pending"), ("pending", "escalated")])
    def test_two_open_letters_of_an_older_version_are_kept(self, dlq, put, other, statuses):
        put(1)
        (line,) = map(json.loads, dlq.export())
        lines = [
            json.dumps(line | {"status": status, "rejected_at": f"2026-11-0{day}T00:00:00Z"})
            for day, status in enumerate(statuses, 1)
        ]
        assert other.import_(lines).new == 2
        again = other.import_(lines)
        assert (again.new, again.known, again.differing) == (0, 2, 0)
        assert tuple(letter.status for letter in other.each()) == statuses

    def test_does_not_differ_by_the_order_of_its_fields(self, dlq, other):
        dlq.put(RECORD | {"a": 1e22, "zz": 1, "b": [0.1]}, "bad", pipeline="p", key="k")
        dlq.edit(dlq.find()[0].id, patch={"zzz": 1, "a": 2})
        other.import_(dlq.export())
        assert other.import_(dlq.export()).differing == 0
        assert dlq.import_(other.export()).differing == 0


def test_exported_letter_is_recognized_by_its_identity(dlq, other, put):
    put(1)
    other.import_(dlq.export())
    other.put({"id": "D-0"}, "fee: not a number", pipeline="vendor", source="deliveries.csv", key="D-0")
    assert other.count() == 1


class TestNextNight:
    """PostgreSQL returns the fields of a record in its own order."""

    NIGHT = ("long name,id,v", "a,1,bad", "b,2,bad", "c,3,bad", "d,9,good")

    @staticmethod
    def run(store, tmp_path, *lines):
        def check(record):
            if record["v"] == "bad":
                raise ValueError("v is bad")

        (tmp_path / "in.csv").write_text("\n".join([*lines, ""]))
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "t", key="id", create=True)
        source, gate = redrive.rows.csv(tmp_path / "in.csv"), redrive.Gate(abort=1)
        pipeline = redrive.Pipeline("p", source=source, sink=sink, validate=check, gate=gate, store=store)
        pipeline.run()
        return pipeline

    @pytest.mark.parametrize("is_back", [False, True], ids=["to SQLite", "from SQLite"])
    def test_decisions_and_edits_hold(self, store, tmp_path, is_back):
        with redrive.connect(tmp_path / "other.db") as other:
            before, after = (other, store) if is_back else (store, other)
            pipeline = self.run(before, tmp_path, *self.NIGHT)
            discarded, replayed, edited = (letter.id for letter in before.dlq.each())
            before.dlq.discard(ids=[discarded], note="withdrawn")
            before.dlq.edit(replayed, patch={"v": "fixed"})
            assert before.dlq.replay(pipeline, dry_run=False, ids=[replayed]).reprocessed == 1
            before.dlq.edit(edited, patch={"v": "fixed"})
            assert after.dlq.import_(before.dlq.export(status="any")).new == 3
            self.run(after, tmp_path, *self.NIGHT)
            found = [(letter.status, letter.edited, letter.seen) for letter in after.dlq.each(status="any")]
            assert found == [("discarded", False, 2), ("reprocessed", True, 2), ("pending", True, 2)]


def test_export_accepts_the_filters(dlq, put):
    put(3)
    put(2, pipeline="other")
    assert len(list(dlq.export(pipeline="other"))) == 2


def test_interrupted_import_keeps_and_reports_its_letters(dlq, other, put):
    put(1_500)
    lines = list(dlq.export())
    lines[1_200] = lines[1_200][:40]
    with pytest.raises(redrive.LetterError, match=r"line 1201 is cut short.*1,200 letters were imported before it"):
        other.import_(lines[:1_201])
    assert other.count() == 1_200
    assert other.import_(dlq.export()).new == 300


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2}',
        "\x00",
        "null",
        '"text"',
    ],
)
def test_invalid_line_is_rejected(dlq, line):
    with pytest.raises(redrive.LetterError, match="line 1 is "):
        dlq.import_([line])
    assert dlq.count() == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "open"),
        ("error_type", None),
        ("error_type", 7),
        ("identity", "zz"),
        ("identity", "00"),
        ("rejected_at", "yesterday"),
        ("rejected_at", None),
        ("run_id", "run-7"),
        ("seen", "often"),
        ("seen", -1),
        ("pipeline_name", None),
        ("pipeline_name", 7),
        ("source_key", {"a": 1}),
        ("error_message", "a\0b"),
        ("format", 2),
    ],
)
def test_letter_with_an_invalid_field_is_rejected(dlq, put, field, value):
    put(1)
    letter = json.loads(next(iter(dlq.export())))
    dlq.discard(note="x", pipeline="vendor")
    letter[field] = value
    letter["source_key"] = letter["source_key"] if field == "source_key" else "other"
    with pytest.raises(redrive.LetterError, match="line 1 is "):
        dlq.import_([json.dumps(letter)])
    assert dlq.count() == 1


def test_empty_lines_are_passed_over(dlq, other, put):
    put(2)
    lines = "\n\n".join(dlq.export()).split("\n")
    assert other.import_([*lines, ""]).new == 2


def test_letter_rejected_at_the_time_of_a_decided_one_is_kept(dlq, other):
    moment = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
    letter = redrive.NewLetter({"a": 1}, "bad", key="k", rejected_at=moment)
    dlq.put_many([letter], pipeline="p")
    dlq.discard(note="x", key="k")
    dlq.put_many([replace(letter, record={"a": 2})], pipeline="p")  # unchanged, it would stay decided
    lines = list(dlq.export())
    assert other.import_(lines).new == 2
    assert other.import_(lines).new == 0
    other.discard(note="y", status="pending")
    assert other.import_(lines).new == 0


def test_import_into_a_redacting_store_is_redacted(dlq, tmp_path):
    dlq.put({"card": "4111111111111111"}, "bad 4111111111111111", pipeline="p")
    with redrive.connect(tmp_path / "redacted.db", redact=["card"], store_redacted=True) as store:
        store.dlq.import_(dlq.export())
        assert "4111" not in repr(store.dlq.find())
        assert "4111" not in repr(store.dlq.causes())
