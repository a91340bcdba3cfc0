"""`redrive dlq edit`: a preview first, then the edit; by field, patch, expression, file or editor."""

import json
import stat
import sys
from decimal import Decimal

import pytest

import redrive


@pytest.fixture
def editor(here):
    """An editor that runs a Python expression over the record."""

    def editor(expression="{**record, 'fee': 0}", code=0, text=None):
        path = here / "editor.py"
        change = f"json.dumps({expression})" if text is None else repr(text)
        path.write_text(
            "import json, os, sys\npath = sys.argv[-1]\nrecord = json.load(open(path))\n"
            "open('seen', 'w').write(f'{oct(os.stat(path).st_mode)[-3:]} {path}')\n"
            f"open(path, 'w').write({change})\nsys.exit({code})\n"
        )
        return {"EDITOR": f"{sys.executable} {path}", "VISUAL": ""}

    return editor


def test_preview_shows_the_changes_and_changes_nothing(run, put, store):
    put(2)
    answer = run("dlq", "edit", "--pipeline", "vendor", "--set", "fee=0", "--set", "customer.zip=01234")
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "letter\tfield\tbefore\tafter"
    assert answer.rows[:2] == [["1", "fee", '"N/A"', "0"], ["1", "customer", "", '{"zip":"01234"}']]
    assert answer.err == (
        "would edit 2 letters\n"
        "dry run: nothing was changed\n"
        "Next steps:\n"
        "  execute  redrive dlq edit --pipeline vendor --set fee=0 --set customer.zip=01234 --go\n"
    )
    assert not store.dlq.get(1).edited


@pytest.mark.parametrize(
    ("words", "record"),
    [
        (["--set", "fee=0"], {"id": "D-1", "fee": 0}),
        (["--set", "fee=free"], {"id": "D-1", "fee": "free"}),
        (["--set", "fee=12345678901234567.89"], {"id": "D-1", "fee": Decimal("12345678901234567.89")}),
        (
            ["--patch", '{"fee": 0.5, "tax": 99999999999999999.99}'],
            {"id": "D-1", "fee": 0.5, "tax": Decimal("99999999999999999.99")},
        ),
        (["--set", "fee="], {"id": "D-1", "fee": ""}),
        (["--set", 'fee="0"'], {"id": "D-1", "fee": "0"}),
        (["--set", "fee=a=b"], {"id": "D-1", "fee": "a=b"}),
        (["--set", "a.b=1", "--set", "a.c=2"], {"id": "D-1", "fee": "N/A", "a": {"b": 1, "c": 2}}),
        (["--unset", "fee"], {"id": "D-1"}),
        (["--set", "tax=1", "--unset", "fee"], {"id": "D-1", "tax": 1}),
        (["--patch", '{"fee": null, "tax": 2}'], {"id": "D-1", "tax": 2}),
        (["--expr", '{**record, "fee": None}'], {"id": "D-1", "fee": None}),
    ],
)
def test_edit_is_made_with_go_and_the_original_is_stored(run, put, store, words, record):
    put(1)
    answer = run("dlq", "edit", 1, *words, "--go", "--note", "they mean none")
    assert (answer.code, answer.err) == (0, "edited 1 letter\n")
    letter = store.dlq.get(1)
    assert (letter.payload, letter.record) == (record, {"id": "D-1", "fee": "N/A"})
    assert store.dlq.audit(1)[0].note == "they mean none"
    assert run("dlq", "edit", 1, "--undo", "--go").code == 0
    assert not store.dlq.get(1).edited


def test_value_may_be_of_a_type_that_json_lacks(run, put, store):
    from decimal import Decimal

    put(1)
    run("dlq", "edit", 1, "--set", 'fee={"$decimal": "19.90"}', "--go")
    assert store.dlq.get(1).payload["fee"] == Decimal("19.90")


def test_whole_record_is_read_from_a_file_or_stdin(run, put, store, here):
    put(1)
    (here / "record.json").write_text('{"id": "D-1", "fee": 7}')
    preview = run("dlq", "edit", 1, "--record", "record.json")
    assert preview.rows == [["1", "fee", '"N/A"', "7"]]
    assert preview.err.startswith(
        "dry run: nothing was changed\nNext steps:\n  execute  redrive dlq edit 1 --record record.json --go"
    )
    assert not store.dlq.get(1).edited
    assert run("dlq", "edit", 1, "--record", "record.json", "--go").err.startswith("edited letter 1\n")
    assert store.dlq.get(1).payload == {"id": "D-1", "fee": 7}
    assert run("dlq", "edit", 1, "--record", "-", "--go", input="[1, 2]").code == 0
    assert store.dlq.get(1).payload == [1, 2]
    assert (
        run("dlq", "edit", 1, "--record", "-", "--go", input="[1, 2]").err
        == "the record is the same. Nothing was changed\n"
    )


def test_edit_in_json_has_all_details(run, put):
    put(2)
    told = json.loads(run("dlq", "edit", "--pipeline", "vendor", "--set", "fee=0", "--json").out)
    assert (told["dry_run"], told["selected"], told["changed"], told["failed"]) == (True, 2, 2, 0)
    assert told["previews"][0] == {
        "id": 1,
        "before": {"id": "D-1", "fee": "N/A"},
        "after": {"id": "D-1", "fee": 0},
        "changes": [{"path": "fee", "before": '"N/A"', "after": "0"}],
    }
    told = json.loads(run("dlq", "edit", 1, "--record", "-", "--json", input="{}").out)
    assert (told["dry_run"], told["id"], [one["path"] for one in told["changes"]]) == (True, 1, ["id", "fee"])


def test_letters_with_a_failing_edit_are_unchanged_and_reported(run, put, store):
    put(2)
    store.dlq.put("no columns", "parse", pipeline="vendor")
    answer = run("dlq", "edit", "--pipeline", "vendor", "--expr", '{**record, "fee": 0}', "--go")
    assert answer.code == 70
    assert answer.err == (
        "edited 2 letters; 1 letter skipped: the edit fails on them\n"
        "  TypeError: 'str' object is not a mapping (letter 3)\n"
    )


def test_edits_beyond_the_shown_ones_are_counted(run, put):
    put(12)
    answer = run("dlq", "edit", "--pipeline", "vendor", "--set", "fee=0")
    assert len(answer.rows) == 10
    assert "would edit 12 letters, the first 10 of them above" in answer.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "fee=0"], "no letters to edit"),
        (["1", "--set", "fee"], "--set must be FIELD=VALUE, not 'fee'"),
        (["1", "--set", "=0"], "--set must be FIELD=VALUE"),
        (["1", "--set", "fee=null"], "null in a patch removes the field: write --unset fee for that"),
        (["1", "--set", "a=1", "--set", "a.b=1"], "a.b and another --set contradict each other"),
        (["1", "--set", "a=1", "--undo"], "--set or --unset and --undo exclude each other"),
        (["1", "--patch", "{"], "--patch is not JSON"),
        (["1", "--patch", "3"], "a patch is an object of the fields to change"),
        (["1", "--expr", "record["], "the edit is no Python expression"),
        (["1", "--expr", "fee = 0"], "the edit is a statement"),
        (["1", "--record", "nowhere.json"], "cannot read nowhere.json: No such file"),
        (["1", "2", "--record", "x.json"], "--record replaces one record: name one letter by its id"),
        (["--pipeline", "vendor", "--record", "x.json"], "--record replaces one record"),
        (["--pipeline", "vendor"], "no edit given. Pass --set, --unset"),
        (["1"], "no edit given. Pass --set, --unset"),
        (["9", "--set", "fee=0"], "there is no letter 9"),
        (["2", "--set", "fee=0"], "letter 2 is discarded and cannot be edited. Reopen it first"),
        (["2", "--record", "-"], "letter 2 is discarded and cannot be edited. Reopen it first"),
    ],
)
def test_invalid_edit_is_rejected_in_one_sentence(run, put, store, words, sentence):
    put(2)
    store.dlq.discard(ids=(2,), note="known")
    answer = run("dlq", "edit", *words, "--go")
    assert answer.code == 64
    assert answer.sentence.startswith(sentence)
    assert not store.dlq.get(1).edited


def test_record_changed_in_the_editor_is_stored_on_yes(terminal, put, store, here, editor):
    put(1)
    no = terminal("dlq", "edit", 1, keys="n\n", **editor())
    assert "Store this edit? [y/N]" in no.out
    assert "nothing was changed" in no.out
    assert not store.dlq.get(1).edited
    yes = terminal("dlq", "edit", 1, keys="y\n", **editor())
    assert '1  fee    "N/A"   0' in yes.out
    assert store.dlq.get(1).payload == {"id": "D-1", "fee": 0}
    mode, path = (here / "seen").read_text().split()
    assert mode == f"{stat.S_IRUSR | stat.S_IWUSR:o}"
    assert not (here / path).exists()


def test_failing_or_unchanged_editor_changes_nothing(terminal, put, store, editor):
    put(1)
    assert "the record is the same" in terminal("dlq", "edit", 1, **editor("record")).out
    shown = " ".join(terminal("dlq", "edit", 1, **editor(code=3)).out.split())
    assert "exited with status 3. Nothing was changed" in shown
    assert "cannot run nowhere/editor" in terminal("dlq", "edit", 1, EDITOR="nowhere/editor", VISUAL="").out
    assert not store.dlq.get(1).edited


def test_invalid_json_from_the_editor_is_saved(terminal, put, store, here, editor):
    put(1)
    answer = terminal("dlq", "edit", 1, **editor(text="{half"))
    assert answer.code == 64
    assert "the edited record is not JSON" in answer.out
    _, path = (here / "seen").read_text().split()
    assert (here / path).read_text() == "{half"
    (here / path).unlink()


@pytest.mark.parametrize(
    ("record", "kind"), [(b"2,b\xff,6", "bytes"), ("2,b,6", "text"), ([{"a": 1}], "a list of records")]
)
def test_record_without_fields_is_not_patched(run, store, record, kind):
    store.dlq.put(record, "bad", pipeline="vendor")
    answer = run("dlq", "edit", 1, "--set", "name=b", "--go")
    assert answer.code == 70
    assert f"the record is {kind}, and a patch needs fields; replace it as a whole (--line, --record)" in answer.err
    assert not store.dlq.get(1).edited
    with pytest.raises(redrive.LetterError, match="a patch needs fields"):
        store.dlq.edit(1, patch={"name": "b"})


def test_list_is_not_replaced_by_an_object(run, store):
    store.dlq.put({"order": {"items": [{"price": 1}]}}, "bad", pipeline="vendor")
    answer = run("dlq", "edit", 1, "--set", "order.items.0.price=5", "--go")
    assert answer.code == 70
    assert "order.items is a list, and a patch cannot change an item of it" in answer.err
    assert not store.dlq.get(1).edited
    assert run("dlq", "edit", 1, "--set", "order.items=[5]", "--go").code == 0
    assert store.dlq.get(1).edited_record == {"order": {"items": [5]}}


@pytest.mark.parametrize(("words", "stdin"), [(["--line", "2,b,6"], None), (["--line", "-"], "2,b,6\r\n")])
def test_line_is_replaced_by_text(run, store, words, stdin):
    store.dlq.put(b"2,b\xff,6", "bad", pipeline="vendor")
    assert run("dlq", "edit", 1, *words, "--go", input=stdin).code == 0
    assert store.dlq.get(1).payload == "2,b,6"


def test_undo_is_previewed(run, put, store):
    put(2)
    run("dlq", "edit", 1, "--set", "fee=5", "--go")
    answer = run("dlq", "edit", "--pipeline", "vendor", "--undo")
    assert answer.rows == [["1", "fee", "5", '"N/A"']]
    assert answer.err.splitlines()[0] == "would undo the edits of 1 letter; 1 letter would not change"
    assert store.dlq.get(1).edited
    assert run("dlq", "edit", 1, "--undo", "--go").err == "undid the edits of 1 letter\n"


def test_line_for_a_letter_with_fields_is_rejected(run, put, store):
    put(1)
    answer = run("dlq", "edit", 1, "--line", "D-1,5", "--go")
    assert answer.code == 64
    assert answer.sentence.startswith("letter 1 holds fields, not a line of text; edit it by --set FIELD=VALUE")
    assert not store.dlq.get(1).edited


@pytest.mark.parametrize("how", [["--set", "p.ssn=078-05-1120"], ["--patch", '{"p": {"ssn": "078-05-1120"}}']])
@pytest.mark.parametrize("which", [["1"], ["--pipeline", "vendor"]])
def test_preview_does_not_show_a_redacted_value(run, store, here, how, which):
    (here / "redrive.toml").write_text('[letters]\nredact = ["*.ssn"]\n')
    store.dlq.put({"p": {"ssn": "1"}}, "bad", pipeline="vendor")
    answer = run("dlq", "edit", *which, *how)
    assert answer.code == 0
    assert "  execute  run the same command with --go\n" in answer.err
    assert "078-05-1120" not in answer.out + answer.err


@pytest.mark.parametrize(
    "how",
    [["--set", "card=***"], ["--patch", '{"card": "***"}'], ["--expr", "{**record, 'card': '***'}"], ["--record", "-"]],
    ids=lambda how: how[0],
)
@pytest.mark.parametrize("go", [["--go"], []], ids=["go", "preview"])
def test_redacted_field_is_not_set_to_its_mask(run, store, here, how, go):
    (here / "redrive.toml").write_text('[letters]\nredact = ["card"]\n')
    store.dlq.put({"card": "4111-TYPO", "v": 1}, "bad", pipeline="vendor")
    answer = run("dlq", "edit", 1, *how, *go, input='{"card": "***", "v": 2}')
    assert answer.code != 0
    assert "it would set a redacted field to its mask, '***'; give the value itself" in answer.err
    assert not store.dlq.get(1).edited
    assert run("dlq", "edit", 1, "--set", "note=***", "--go").code == 0


def test_record_that_was_stored_masked_can_be_edited(run, store, here):
    (here / "redrive.toml").write_text('[letters]\nredact = ["card"]\n')
    store.dlq.put({"card": "***", "v": 1}, "bad", pipeline="vendor")
    assert run("dlq", "edit", 1, "--set", "v=2", "--go").code == 0
    assert store.dlq.get(1).payload == {"card": "***", "v": 2}


class TestRecordWithCredentials:
    """No field is redacted by a setting; what looks like a credential is masked where a record is shown."""

    @pytest.fixture
    def letter(self, store):
        store.dlq.put({"password": "S3cretREC", "db": {"api_key": "S3cretNEST"}, "v": 1}, "bad", pipeline="vendor")

    @pytest.mark.parametrize("how", [("--unset", "password"), ("--set", "password=another"), ("--set", "db.api_key=o")])
    @pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
    def test_preview_shows_no_credential(self, run, letter, how, form):
        answer = run("dlq", "edit", 1, *how, *form)
        assert answer.code == 0
        assert "S3cret" not in answer.out + answer.err

    def test_record_as_shown_is_rejected(self, run, store, letter):
        shown = json.loads(run("dlq", "show", 1, "--json").out)["record"]
        answer = run("dlq", "edit", 1, "--record", "-", "--go", input=json.dumps({**shown, "v": 2}))
        assert answer.code != 0
        assert "to what is shown of its value; give the value itself" in answer.err
        assert not store.dlq.get(1).edited
