"""`redrive dlq causes`, `ls`, `show` and `history`."""

import json
import shlex
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import ClassVar

import pytest

import redrive
from redrive.cli.output import Output
from redrive.cli.session import Session

LETTER_HEADER = "id pipeline status type cause key position source seen rejected last_seen edited message".replace(
    " ", "\t"
)


def days_ago(days):
    return datetime.now(UTC) - timedelta(days=days)


# ── causes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_causes_have_counts_trend_and_common_values(run, put, store):
    put(3, error="fee: could not convert 'N/A'")
    put(1, start=50, error="HTTP 404: /pages/7 is gone", pipeline="pages")
    answer = run("dlq", "causes")
    assert answer.code == 0
    assert answer.out.splitlines()[0] == (
        "cause\tletters\tpending\tescalated\tseen\tpipelines\tfirst_seen\tlast_seen\ttrend\tmessage"
    )
    first, second = answer.rows
    assert len(first[0]) == 12
    assert first[1:6] == ["3", "3", "0", "3", "vendor"]
    assert first[8:] == ["0,0,0,0,0,0,3", "fee: could not convert <value>"]
    assert second[5] == "pages"
    datetime.fromisoformat(first[6])


def test_causes_in_json_are_complete(run, put):
    put(2)
    (cause,) = json.loads(run("dlq", "causes", "--json").out)
    assert cause["count"] == 2
    assert cause["by_status"] == {"pending": 2, "reprocessed": 0, "discarded": 0, "escalated": 0}
    assert cause["pipelines"] == ["vendor"]
    assert cause["message"] == cause["sample"] == "fee: not a number"
    assert cause["first_seen"].endswith("Z")


def test_causes_with_only_closed_letters_are_listed_on_request(run, put, store):
    put(1)
    put(1, start=9, error="another reason")
    store.dlq.discard(ids=(1,), note="known")
    assert [row[-1] for row in run("dlq", "causes").rows] == ["another reason"]
    assert len(run("dlq", "causes", "--all-statuses").rows) == 2
    assert [row[-1] for row in run("dlq", "causes", "--status", "discarded").rows] == ["fee: not a number"]


def test_causes_beyond_the_limit_are_announced(run, put):
    for n, error in enumerate(("one", "two", "three")):
        put(1, start=n, error=f"reason {error}")
    answer = run("dlq", "causes", "--limit", 2)
    assert len(answer.rows) == 2
    assert answer.err == "Next steps:\n  list more causes  redrive dlq causes --limit 10\n"


def test_empty_list_of_causes_is_reported(run, store):
    assert run("dlq", "causes").err == "no open letters; 0 letters in total\n"
    assert run("dlq", "causes", "--pipeline", "x").err == "no causes match\n"
    assert json.loads(run("dlq", "causes", "--json").out) == []


def test_cause_on_a_terminal_has_the_shortest_unique_prefix(terminal, put):
    put(2)
    answer = terminal("dlq", "causes", columns=140)
    header, _, row = answer.out.splitlines()
    assert header.split() == [
        "cause",
        "letters",
        "pending",
        "seen",
        "pipelines",
        "first",
        "seen",
        "last",
        "seen",
        "trend",
        "message",
    ]
    assert len(row.split()[0]) == 6
    assert "▁▁▁▁▁▁█" in row
    narrow = terminal("dlq", "causes", columns=80).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert "fee: not a number" in narrow


# ── ls ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ls_shows_pending_letters_newest_first(run, put, store):
    put(3)
    store.dlq.discard(ids=(2,), note="known")
    answer = run("dlq", "ls")
    assert answer.out.splitlines()[0] == LETTER_HEADER
    assert [row[0] for row in answer.rows] == ["3", "1"]
    assert answer.rows[0][1:4] == ["vendor", "pending", "validation"]
    assert answer.rows[0][5:7] == ["D-3", "3"]
    assert answer.rows[0][-2:] == ["false", "fee: not a number"]
    assert answer.err == ""


def test_ls_pages_by_letter_and_shows_the_next_command(run, put):
    put(5)
    first = run("dlq", "ls", "--limit", 2)
    assert first.err == "Next steps:\n  list the next page  redrive dlq ls --limit 2 --after 4\n"
    second = run("dlq", "ls", "--limit", 2, "--after", 4)
    assert [row[0] for row in second.rows] == ["3", "2"]
    assert second.err == "Next steps:\n  list the next page  redrive dlq ls --limit 2 --after 2\n"
    last = run("dlq", "ls", "--limit", 2, "--after=2")
    assert [row[0] for row in last.rows] == ["1"]
    assert last.err == ""
    assert [row[0] for row in run("dlq", "ls", "--oldest-first", "--limit", 1, "--after", 1).rows] == ["2"]


def test_hint_for_the_next_page_can_be_copied():
    words = ("dlq", "ls", "--text", "not a number", "--store", "postgresql://u@h/d", "--after", "9")
    session = Session(url=None, out=Output(), words=words)
    assert session.again_with("--after", 4) == (
        "redrive dlq ls --text 'not a number' --store postgresql://u@h/d --after 4"
    )


@pytest.mark.parametrize(
    "secret", [["--store", "postgresql://u:hunter2@h/d"], ["--param", "token=hunter2"], ["--text", "password='a b'"]]
)
def test_command_with_a_secret_is_described_not_shown(secret):
    session = Session(url=None, out=Output(), words=("dlq", "ls", *secret, "--restart"))
    assert session.again_with("--go") == "run the same command with --go"
    assert session.again_with("--after", 4) == "run the same command with --after 4"
    assert session.again_without("--restart", "--new-run") == "run the same command without --restart"
    assert session.again_without("--new-run") == "run the same command again"


def test_ls_in_json_is_an_array_of_complete_letters(run, store):
    run_id = uuid.uuid4()
    record = {"fee": Decimal("19.90"), "raw": b"\xff", "when": datetime(2026, 7, 1, tzinfo=UTC), "big": 2**80}
    store.dlq.put(record, ValueError("fee"), pipeline="vendor", key="D-1", source="d.csv", run_id=run_id, position=7)
    (letter,) = json.loads(run("dlq", "ls", "--json").out)
    assert letter["record"] == {
        "fee": {"$decimal": "19.90"},
        "raw": {"$bytes": "/w=="},
        "when": {"$datetime": "2026-07-01T00:00:00+00:00"},
        "big": {"$int": str(2**80)},
    }
    assert letter["run_id"] == str(run_id)
    assert (letter["id"], letter["status"], letter["position"], letter["source"]) == (1, "pending", "7", "d.csv")
    assert (letter["note"], letter["edited"]) == (None, False)
    assert "edited_record" not in letter
    assert datetime.fromisoformat(letter["rejected_at"]).tzinfo is not None


@pytest.fixture
def various(store):
    run_id = uuid.UUID("12345678-1234-5678-1234-567812345678")
    store.dlq.put_many(
        [
            redrive.NewLetter({"n": 1}, "fee: N/A", key="D-1", source="a.csv", position="line 3", run_id=run_id),
            redrive.NewLetter({"n": 2}, "not JSON", key="D-2", source="b.csv", error_type="parse"),
            redrive.NewLetter({"n": 3}, "gone", pipeline="pages", rejected_at=days_ago(5)),
            redrive.NewLetter({"n": 4}, "gone", pipeline="pages", key="P-4", error_type="page"),
            redrive.NewLetter({"n": 4}, "gone", pipeline="pages", key="P-4", error_type="page"),
        ],
        pipeline="vendor",
    )
    store.dlq.edit(2, patch={"n": 9})
    store.dlq.escalate(ids=(1,), note="look at it")


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("--status any", "4321"),
        ("--all-statuses", "4321"),
        ("--status escalated", "1"),
        ("--status pending,escalated", "4321"),
        ("--status pending --status escalated", "4321"),
        ("--pipeline pages", "43"),
        ("--pipeline pages --pipeline vendor", "4321"),
        ("--error-type parse", "2"),
        ("--since 2d", "421"),
        ("--until 2d", "3"),
        ("--since today --status any", "421"),
        ("--seen-since 1h", "421"),
        ("--run 12345678-1234-5678-1234-567812345678 --status any", "1"),
        ("--source b.csv", "2"),
        ("--key D-2", "2"),
        ("--key D-2 --key P-4", "42"),
        ("--source a.csv --source b.csv", "21"),
        ("--position 'line 3' --position 'line 4'", "1"),
        ("--error-type parse --error-type page", "42"),
        ("--position 'line 3' --status any", "1"),
        ("--text GONE", "43"),
        ("--min-seen 2", "4"),
        ("--edited", "2"),
        ("--unedited", "431"),
        ("--id 2 --id 4", "42"),
        ("2 4", "42"),
        ("1", "1"),
        ("1 --status pending", ""),
        ("--pipeline pages --min-seen 2 --since 1d", "4"),
        ("--pipeline nobody", ""),
    ],
)
def test_each_filter_selects_its_letters(run, various, words, ids):
    answer = run("dlq", "ls", *shlex.split(words))
    assert answer.code == 0
    assert "".join(row[0] for row in answer.rows) == ids
    assert bool(answer.err) == (ids == "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--since", "yesterdayish"], "since must be an age such as"),
        (["--status", "lost"], "there is no status 'lost'; it is one of pending"),
        (["--error-type", "odd"], "there is no error type 'odd'"),
        (["--cause", "xyz"], "a cause is up to twelve hexadecimal digits"),
        (["--cause", "abc"], "no cause begins with abc. `redrive dlq causes` lists causes"),
        (["--run", "17"], "a run is a UUID, or the beginning of one"),
        (["0"], "a letter's id is a number of 1 or more"),
    ],
)
def test_invalid_filter_is_rejected_in_one_sentence(run, various, words, sentence):
    answer = run("dlq", "ls", *words)
    assert answer.code == 64
    assert answer.sentence.startswith(sentence)


def test_cause_may_be_shortened_while_it_is_unique(run, put, store):
    for n in range(40):  # of 40 causes, two begin with the same digit
        put(1, start=n, error=f"reason {chr(97 + n // 8)}{chr(97 + n % 8)}")
    causes = [cause.fingerprint for cause in store.dlq.causes()]
    assert len(causes) == 40
    assert len(run("dlq", "ls", "--cause", causes[0][:8]).rows) == 1
    twice = next(one[0] for one in causes if sum(other[0] == one[0] for other in causes) > 1)
    answer = run("dlq", "ls", "--cause", twice)
    assert answer.code == 64
    assert f"causes begin with {twice} (" in answer.sentence
    assert answer.sentence.endswith("type more digits")


def test_error_of_several_lines_is_one_row(run, terminal, store):
    store.dlq.put({}, "first\nsecond", pipeline="vendor")
    assert run("dlq", "ls").rows[0][-1] == "first\\nsecond"
    assert terminal("dlq", "ls").out.splitlines()[-1].endswith("first second")


def test_requested_statuses_are_shown_on_a_narrow_terminal(terminal, put):
    put(1)
    assert "status" not in terminal("dlq", "ls", columns=60).out
    assert "status" in terminal("dlq", "ls", "--status", "any", columns=60).out


# ── show ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_show_prints_everything_about_a_letter(run, put, store):
    put(1)
    store.dlq.edit(1, patch={"fee": 0}, note="they mean none")
    store.dlq.escalate(ids=(1,), note="is this right?")
    shown = json.loads(run("dlq", "show", 1, "--json").out)
    assert shown["record"] == {"id": "D-1", "fee": "N/A"}
    assert shown["edited_record"] == {"id": "D-1", "fee": 0}
    assert shown["note"] == "is this right?"
    assert [entry["action"] for entry in shown["audit"]] == ["edited", "escalated"]
    assert shown["audit"][0]["detail"] == {"before": {"id": "D-1", "fee": "N/A"}}
    fields = dict(run("dlq", "show", 1).rows)
    assert (fields["status"], fields["edited_record"]) == ("escalated", '{"id": "D-1", "fee": 0}')


def test_show_on_a_terminal_reads_from_top_to_bottom(terminal, put, store):
    put(1)
    put(1)
    store.dlq.edit(1, patch={"fee": 0})
    store.dlq.escalate(ids=(1,), note="is this right?")
    shown = terminal("dlq", "show", 1).out
    places = [
        shown.index(words)
        for words in (
            "letter     1, escalated",
            "error      fee: not a number",
            "seen 2 times",
            "note       is this right?",
            '"fee": "N/A"',
            "edited record, as a replay sends it",
            '"fee": 0',
            'fee: "N/A" → 0',
            "escalated, pending → escalated by ",
        )
    ]
    assert places == sorted(places)


def test_bytes_are_shown_as_a_dump_and_raw_unchanged(terminal, spawn, store):
    store.dlq.put(b"17;M\xfcller\x1b[31m", "not UTF-8", pipeline="vendor")
    shown = terminal("dlq", "show", 1).out
    assert "record, 14 bytes" in shown
    assert "31 37 3b 4d fc" in shown
    assert "17;M.ller.[31m" in shown
    assert spawn("dlq", "show", 1, "--raw", text=False).stdout == b"17;M\xfcller\x1b[31m"
    assert json.loads(spawn("dlq", "show", 1, "--raw", "--json").stdout) == {"$bytes": "MTc7TfxsbGVyG1szMW0="}


def test_long_record_is_cut_with_a_notice(terminal, run, store):
    store.dlq.put({"body": "x" * 30_000, "list": list(range(3_000))}, "too long", pipeline="vendor")
    store.dlq.put(b"\0" * 10_000_000, "too long, too", pipeline="vendor")
    shown = terminal("dlq", "show", 1).out
    assert len(shown) < 8_000
    assert "… (30,000 characters; --full shows all)" in shown
    assert "more characters; --full shows all" in shown
    assert "9,999,750 more bytes; redrive dlq export writes all" in terminal("dlq", "show", 2).out
    assert "x" * 30_000 in terminal("dlq", "show", 1, "--full").out
    assert json.loads(run("dlq", "show", 1, "--raw").out)["body"] == "x" * 30_000


def test_raw_text_is_the_text(run, store):
    store.dlq.put("17;Müller", "no columns", pipeline="vendor")
    assert run("dlq", "show", 1, "--raw").out == "17;Müller\n"
    assert json.loads(run("dlq", "show", 1, "--raw", "--json").out) == "17;Müller"


def test_record_cannot_control_the_terminal(terminal, store):
    store.dlq.put({"name": "\x1b]0;owned\x07"}, "bad \x1b[2J name", pipeline="ven\x1bdor")
    for words in (["show", 1], ["ls"], ["causes"]):
        assert "\x1b]" not in terminal("dlq", *words).out
        assert "\x1b[2J" not in terminal("dlq", *words).out


def test_missing_letter_is_reported(run, store):
    assert (run("dlq", "show", 17).code, run("dlq", "show", 17).sentence) == (64, "there is no letter 17")


# ── history ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_history_lists_the_events_of_a_key(run, put, store):
    put(1, error="fee: N/A")
    store.dlq.discard(ids=(1,), note="known")
    put(1, error="tax: N/A")
    answer = run("dlq", "history", "D-1")
    assert [(row[1], row[2], row[3]) for row in answer.rows] == [
        ("1", "rejected", "pending"),
        ("1", "discarded", "discarded"),
        ("2", "rejected", "pending"),
    ]
    assert answer.rows[1][5] == "known"
    told = json.loads(run("dlq", "history", "D-1", "--json").out)
    assert [letter["id"] for letter in told["letters"]] == [1, 2]
    assert [event["action"] for event in told["events"]] == ["discarded"]


def test_unknown_key_is_reported(run, store):
    assert run("dlq", "history", "D-9").code == 64
    assert run("dlq", "history", "D-9").sentence.startswith("no letter has the key 'D-9'")


# ── redaction ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = ("4111111111111111", "123-45-6789", "Rumpelstilzchen")


@pytest.fixture
def secret(store, here):
    (here / "redrive.toml").write_text('[letters]\nredact = ["card_number", "*.ssn", "name"]\n')
    record = {"card_number": SECRETS[0], "who": {"ssn": SECRETS[1]}, "name": SECRETS[2], "fee": "N/A"}
    error, position = f"card {SECRETS[0]} of {SECRETS[2]} is not valid", f"{SECRETS[2]}, line 3"
    store.dlq.put(record, error, pipeline="vendor", key=SECRETS[1], position=position)
    store.dlq.edit(1, record | {"card_number": SECRETS[0] + "0", "fee": 0}, note=f"for {SECRETS[2]}")
    store.dlq.escalate(ids=(1,), note=f"ask {SECRETS[2]}")


@pytest.mark.parametrize(
    "words",
    ["causes", "ls --status any", "show 1", "history 123-45-6789", "edit 1 --set fee=1", "edit 1 --set card_number=1"],
)
@pytest.mark.parametrize("form", ["pipe", "json", "terminal"])
def test_masked_fields_are_masked_in_every_command(run, terminal, secret, words, form):
    answer = (
        terminal("dlq", *words.split(), columns=200)
        if form == "terminal"
        else run("dlq", *words.split(), *(["--json"] if form == "json" else []))
    )
    assert answer.code == 0
    text = (answer.out + answer.err).replace("history 123-45-6789", "")
    if form == "json" and words.startswith("history"):
        text = text.replace('"key": "123-45-6789"', "", 1)  # the user's own word
    assert [one for one in SECRETS if one in text] == []
    assert "***" in text


def test_raw_and_export_are_complete(run, secret):
    for words in (["show", 1, "--raw"], ["export"]):
        assert all(one in run("dlq", *words).out for one in SECRETS)


def test_change_of_a_masked_field_is_shown_without_its_value(run, secret):
    shown = run("dlq", "edit", 1, "--set", "card_number=1").rows
    assert ["1", "card_number", "***", "***"] in shown


def test_cursor_of_json_pages_through_all_letters(run, put):
    put(5)
    seen, after = [], []
    while True:
        page = json.loads(run("dlq", "ls", "--json", "--cursor", "--limit", 2, *after).out)
        seen += [letter["id"] for letter in page["letters"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]
    assert seen == [5, 4, 3, 2, 1]


class TestLargeRecord:
    RECORD: ClassVar = {"id": 1, "password": "hunter2", "name": "Rumpelstilzchen", "note": "x" * 20_000}

    @pytest.fixture(autouse=True)
    def letter(self, store):
        store.dlq.put(self.RECORD, "no city for Rumpelstilzchen", pipeline="vendor", key="D-1")
        store.dlq.edit(1, self.RECORD | {"id": 2})

    @pytest.mark.parametrize("words", [["ls"], ["history", "D-1"]], ids=" ".join)
    def test_json_of_a_list_has_its_size_and_start(self, run, words):
        answer = run("dlq", *words, "--json").out
        shown = json.loads(answer)
        letter = shown[0] if words == ["ls"] else shown["letters"][0]
        assert (letter["record"], letter["edited_record"]) == (None, None)
        assert letter["record_size"] > 20_000
        assert '"id":' in letter["record_preview"].replace('": ', '":')
        assert "hunter2" not in answer
        assert len(answer) < 5_000
        assert "x" * 20_000 in run("dlq", *words, "--json", "--records").out

    @pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["history", "D-1"], ["causes"]], ids=" ".join)
    def test_texts_are_masked_where_its_fields_are_not_read(self, run, here, words):
        (here / "redrive.toml").write_text('[letters]\nredact = ["name"]\n')
        assert "Rumpel" not in run("dlq", *words).out


def test_list_does_not_read_the_records(store, put):
    put(2)
    store.dlq.edit(1, patch={"fee": 0})
    light = store.dlq.find(records=False)
    assert [(letter.record, letter.edited_record, letter.edited) for letter in light] == [
        (None, None, False),
        (None, None, True),
    ]
    assert [letter.error_message for letter in light] == [letter.error_message for letter in store.dlq.find()]


@pytest.mark.parametrize("status", ["open", "pending", "escalated", "reprocessed", "discarded", "any"])
def test_causes_count_the_letters_that_ls_lists(run, put, store, status):
    put(6)
    put(3, error="another reason")
    ids = [letter.id for letter in store.dlq.each()]
    store.dlq.discard(ids=ids[:2], note="x")
    store.dlq.escalate(ids=ids[2:3], note="x")
    store.dlq.replay(lambda records: None, ids=[*ids[3:4], *ids[6:8]], any_pipeline=True, dry_run=False)
    listed = json.loads(run("dlq", "ls", "--status", status, "--limit", 100, "--json").out)
    wanted = Counter(letter["fingerprint"] for letter in listed)
    causes = json.loads(run("dlq", "causes", "--status", status, "--json").out)
    assert {cause["fingerprint"]: cause["count"] for cause in causes} == wanted
    header, *_ = run("dlq", "causes", "--status", status).out.splitlines()
    for row in run("dlq", "causes", "--status", status).rows:
        shown = dict(zip(header.split("\t"), row, strict=True))
        (cause,) = (one for one in causes if one["fingerprint"].startswith(shown["cause"]))
        assert int(shown["letters"]) == cause["count"]
        assert {name: int(shown[name] or 0) for name in cause["by_status"] if name in shown} == {
            name: count for name, count in cause["by_status"].items() if name in shown
        }
        assert sum(int(shown.get(name) or 0) for name in cause["by_status"]) == cause["count"]


@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "ls", "--limit"],
        ["dlq", "ls", "--after"],
        ["dlq", "ls", "--min-seen"],
        ["dlq", "causes", "--limit"],
        ["dlq", "replay", "--pipeline", "vendor", "--limit"],
        ["dlq", "replay", "--pipeline", "vendor", "--batch"],
        ["runs", "ls", "--limit"],
        ["tasks", "ls", "--limit"],
        ["alerts", "ls", "--limit"],
        ["alerts", "silences", "--limit"],
    ],
    ids=" ".join,
)
def test_number_beyond_the_database_range_is_rejected(run, put, words):
    put(1)
    answer = run(*words, "99999999999999999999")
    assert answer.code == 64, answer
    assert "internal error" not in answer.err
    assert "less than or equal to" in answer.sentence or "at most" in answer.sentence


@pytest.mark.parametrize("words", [["ls"], ["discard", "--note", "x", "--yes"], ["replay"]], ids=lambda words: words[0])
def test_empty_text_selects_nothing(run, put, store, words):
    put(2)
    answer = run("dlq", *words, "--text", "")
    assert answer.code == 64
    assert store.dlq.count(status="pending") == 2


class TestSecretInBytes:
    def test_are_shown_masked_and_raw_as_received(self, run, terminal, spawn, store):
        data = b"17;M\xfcller;password=Zq8vTr4nLw2x"
        store.dlq.put(data, "bad", pipeline="vendor")
        store.dlq.put({"body": data}, "bad", pipeline="vendor")
        for answer in (run("dlq", "ls", "--json"), run("dlq", "show", 1, "--json"), run("dlq", "show", 2, "--json")):
            assert "password=***" in answer.out
            assert "$bytes" not in answer.out
        for number in (1, 2):
            assert "password=***" in terminal("dlq", "show", number).out
        assert spawn("dlq", "show", 1, "--raw", text=False).stdout == data


class TestEmptyStoreOption:
    def test_is_a_usage_error(self, run):
        assert run("dlq", "ls", "--store", "").code == 64
