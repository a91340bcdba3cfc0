"""No secret in any output: keys, passwords and cards are planted everywhere, and all output is searched.

To show that the search reaches an output, each must contain the markers, or other harmless text, beside the secrets.
"""

import json
import re
from dataclasses import dataclass, replace

import psycopg
import pytest

import redrive
from redrive.store import schema
from redrive.tasks.workers.output import KEPT, OutputCollector
from redrive.testing import FaultyServer
from tests.support import planted_secrets as planted
from tests.support.planted_secrets import found_in, marker
from tests.support.secrets_scene import NOWHERE, WORK, Scene, echo, scene

# The user's own data, kept as it was received; what is searched is what redrive says about it.
AS_RECEIVED = {
    "dead_letter_queue": {"raw_record", "edited_record", "source_key", "sink_key", "source_table", "position"},
    "letter_audit": {"detail"},
    "task_runs": {"params"},
    "tasks": {"input", "result"},
    "checkpoints": {"position"},
}
# What redrive itself puts into requests and connections; what other libraries log of them is searched for this.
HANDLED = {
    *("first key", "second key", "token", "keeper", "writer", "the sink", "the source", "another store"),
    *("slots", "tables", "slack", "slack down", "pager", "pager down", "hub", "hub down", "apprise", "apprise down"),
}

# What a program shows of itself, by section, and what is among it.
SECTIONS = {
    "results": ("a body", "a parameter of a flow", "a replay", "a source"),
    "errors": ("a body", "a source", "postgresql://etl:***@127.0.0.1:1"),
    "notes": ("a call", "fetch"),
    "events": ("a body", "a call", "a frame", "a replay", "a source", "a task", "an outage", "fetch"),
    "objects": ("<Store postgresql://keeper:***@", "<table orders in postgresql://writer:***@"),
    "spans": ("a frame", "a source", "a task", "an outage"),
    "metrics": ('redrive_letters{pipeline="vendor"', 'service="partner"', 'channel="slack_down"', "there is /metrics"),
}
_LOGGED = ("a body", "a call", "a frame", "a hook", "a hook cause", "a hook note", "a probe", "a source", "a task")
LOGS = {
    "log.txt": (*_LOGGED, "an outage", "fetch"),
    "log.json": (*_LOGGED, "an outage", "fetch", "a replay"),
    "records.txt": (*_LOGGED, "an outage", "fetch", "a replay"),
    "attempts.json": ('"service": "partner"', '"outcome": "quota"', f'"key_id": "{planted.key("first key")[-4:]}"'),
    "redrive.prom": ('redrive_pipeline_last_run_status{pipeline="vendor"', 'channel="slack_down"'),
    "lamp.txt": ("a task", "REDRIVE_ALERT_TITLE"),
}
COLUMNS = {
    "alerts.title": ("a frame", "a source", "a task"),
    "alerts.facts": ("a frame", "a source", "a task", "an outage"),
    "alerts.note": ("an acknowledgement",),
    "alert_sends.error": ("a body", "lamp"),
    "causes.template": ("a check", "a frame", "a letter", "a task"),
    "causes.sample": ("a check", "a frame", "a letter", "a task"),
    "credentials.key_id": (planted.key("first key")[-4:],),
    "dead_letter_queue.error_message": ("a check", "a frame", "a letter", "a task"),
    "dead_letter_queue.last_error": ("a replay",),
    "runs.reason": ("a source",),
    "runs.sink": ("postgresql://writer:***@",),
    "service_rollups.service": ("partner", "bank"),
    "task_attempts.error": ("a task", "an outage"),
    "task_attempts.trace": ("a task", "a task cause", "a task note", "an outage", "an outage cause", "a line of code"),
    "task_attempts.output": ("stdout", "stderr"),
    "task_changes.cause": ("a task", "an outage"),
    "tasks.error": ("a task", "an outage"),
}


@dataclass
class Aftermath:
    """All outputs after every failure."""

    scene: Scene
    program: dict[str, str]
    letters: dict[str, str]
    """Their ids, by what is special about each."""
    alerts: dict[str, str]
    """Their ids, by what they are about."""


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory, postgres_url):
    with scene(tmp_path_factory.mktemp("leaky"), postgres_url) as here:
        told, complaint = here.python(WORK)
        assert complaint == ""
        program = {}
        for section, text in re.findall(r"^=== (\w+)\n(.*?)(?=^=== |\Z)", told, re.MULTILINE | re.DOTALL):
            program[section] = program.get(section, "") + text
        with redrive.connect(here.store) as store:
            named = {"vendor": "a row", "framed": "a batch"}
            letters = {
                named.get(one.pipeline) or (one.key or one.position)[:20]: str(one.id)
                for one in store.dlq.find(limit=100)
            }
            alerts = {one.subject.name: str(one.id) for one in store.alerts.find(limit=100)}
        note = planted.text("an acknowledgement")
        here.commands(
            ["alerts", "ack", alerts["framed"], "--note", note], ["watch", "--once", "--textfile", "redrive.prom"]
        )
        yield Aftermath(here, program, letters, alerts)


def commands(found):
    """Commands, each with what is to be seen in its answer, in every form."""
    letters, alerts = found.letters, found.alerts
    a_key, another = planted.card("the key of a letter"), planted.line("the key of a letter")
    account = "account=" + planted.text("a parameter of a flow")
    edit = "remark=" + planted.text("an edit")
    return [
        (["run", f"{WORK}:vendor"], ["vendor", "postgresql://writer:***@"]),
        (["run", f"{WORK}:torn", "--debug"], ["a source", "a source cause", "a source note", "Traceback"]),
        (["run", f"{WORK}:pages"], ["pages", "partner"]),
        (["run", f"{WORK}:nowhere"], ["postgresql://etl:***@127.0.0.1:1"]),
        (["run", f"{WORK}:unread", "--debug"], ["unread", "Traceback"]),
        (["run", f"{WORK}:flow", "--param", account], ["a parameter of a flow", "a task", "an outage"]),
        (["run", "broken.py:pipeline", "--debug"], ["an import", "Traceback"]),
        (["runs", "ls", "--limit", "50"], ["torn", "settlement"]),
        (["runs", "show", "torn"], ["a source"]),
        (["runs", "show", "copied"], [f"***{planted.card('a key 1')[-4:]}"]),
        (["runs", "show", "settlement"], ["a parameter of a flow", "a task", "an outage"]),
        (["tasks", "ls"], ["an outage"]),
        (["tasks", "show", "settle[0]"], ["a parameter of a flow", "an item", "a task", "a task cause", "a task note"]),
        (["tasks", "show", "settle[1]"], ["stdout", "stderr"]),
        (["tasks", "show", "merchants"], ["a parameter of a flow", "an item"]),
        (["tasks", "show", "literal"], ["a line of code"]),
        (["dlq", "causes"], ["a check", "a frame", "a letter", "a task"]),
        (
            ["dlq", "ls", "--status", "any", "--limit", "50"],
            ["a replay", "a letter", "the key of a letter", "a position"],
        ),
        (["dlq", "show", letters["a row"]], ["a row", "a replay"]),
        (["dlq", "show", letters["a batch"]], ["a row", "a frame"]),
        (["dlq", "show", letters["settle[1]"]], ["a parameter of a flow", "an item"]),
        (["dlq", "show", letters[a_key]], ["a record", "an edit", "the name of a source"]),
        (["dlq", "show", letters[another[:20]]], ["a record", "a note", "the key of a letter", "a position"]),
        (["dlq", "show", letters["bytes"]], ["a letter", "bytes)"]),
        (["dlq", "show", letters["text"]], ["a letter", "characters)"]),
        (["dlq", "show", letters["line 3"]], ["parse", "bytes)"]),
        (["dlq", "show", letters["line 4"]], ["parse", "bytes)"]),
        (["dlq", "history", a_key], ["a letter", "a note of an edit"]),
        (["dlq", "history", another], ["a letter", "a note"]),
        (["dlq", "replay", "--pipeline", "by hand", "--target", f"{WORK}:reprocess"], ["a replay"]),
        (["dlq", "edit", letters["a row"], "--set", edit], ["a row", "an edit"]),
        (["alerts", "ls", "--all"], ["a body", "a frame", "a source", "a task", "lamp"]),
        (["alerts", "show", alerts["torn"]], ["a body", "a source"]),
        (["alerts", "show", alerts["settlement"]], ["settlement"]),
        (["alerts", "show", alerts["framed"]], ["a frame", "an acknowledgement"]),
        (["alerts", "test", "P1", "--no-wait"], ["a body", "lamp"]),
        (["services", "ls"], ["partner", "bank"]),
        (["services", "show", "partner"], ["partner"]),
        (["store", "info"], ["postgresql://keeper:***@"]),
        (["watch", "--once"], ["settlement"]),
    ]


def mistyped(found):
    """Commands that cannot be done, with secrets in what was typed."""
    word = planted.line("a typed word")
    return [
        (
            ["store", "info", "--store", NOWHERE.format(planted.key("a typed store"))],
            ["postgresql://etl:***@127.0.0.1:1"],
        ),
        ([word], ["a typed word"]),
        (["runs", "show", word], ["a typed word"]),
        (["tasks", "show", word], ["a typed word"]),
        (["run", word], ["a typed word"]),
        (["run", f"{WORK}:flow", "--param", word], ["a typed word"]),
        (["dlq", "history", word], ["a typed word"]),
        (["dlq", "ls", "--status", "any", "--text", "zebra", "--source", word, "--limit", "1"], ["no letters"]),
        (["dlq", "discard", "--id", found.letters["text"], "--note", word, "--yes"], ["1 letter"]),
        (["dlq", "show", found.letters["text"]], ["a typed word"]),
    ]


def searched(outputs, expected):
    """What outputs show and must not, and what they must show and do not: by their names."""
    wanted = {name: [marker(one) if one in planted.PLACES else one for one in ones] for name, ones in expected.items()}
    shown = {name: leaks for name, output in outputs.items() if (leaks := found_in(output))}
    missing = {name: [one for one in ones if one not in outputs.get(name, "")] for name, ones in wanted.items()}
    missing = {name: left for name, left in missing.items() if left}
    return shown, missing


@pytest.mark.parametrize("form", ["pipe", "json", "terminal"])
def test_no_command_shows_a_secret(aftermath, form):
    asked = commands(aftermath)
    words = [[*one, *(["--json"] if form == "json" else [])] for one, _ in asked]
    ask = aftermath.scene.terminal if form == "terminal" else aftermath.scene.commands
    names = [" ".join(one)[:60] for one, _ in asked]
    outputs = dict(zip(names, ask(*words), strict=True))
    assert searched(outputs, dict(zip(names, [seen for _, seen in asked], strict=True))) == ({}, {})


def undumped(output):
    """What a hexadecimal dump shows."""
    rows = re.findall(r"^[0-9a-f]{8}  ([0-9a-f ]{48})", output, re.MULTILINE)
    return bytes.fromhex("".join(rows)).decode("latin-1")


@pytest.mark.parametrize("form", ["pipe", "json", "terminal"])
def test_unredacted_record_is_shown_without_secrets(aftermath, form, tmp_path):
    (tmp_path / "redrive.toml").write_text('[store]\nurl = "$LEAKY_STORE"\n')
    bare = replace(aftermath.scene, here=tmp_path)
    ask = bare.terminal if form == "terminal" else bare.commands
    names = ("a row", "a batch", "bytes", "text", "line 3", "line 4")
    asked = {name: ["dlq", "show", aftermath.letters[name], "--full"] for name in names}
    outputs = dict(zip(asked, ask(*([*one, *(["--json"] * (form == "json"))] for one in asked.values())), strict=True))
    assert marker("a row") in outputs["a row"]
    assert marker("a text") in outputs["text"]
    if form == "terminal":
        outputs |= {f"the bytes of {name}": undumped(outputs[name]) for name in ("bytes", "line 3", "line 4")}
        # Bytes with a secret in them are shown as masked text, others as a dump.
        for name, place in (("bytes", "bytes"), ("line 3", "a ragged line"), ("line 4", "a line of no text")):
            assert marker(place) in outputs[name] + outputs[f"the bytes of {name}"]
    unnamed = planted.PLACES - {"a field"}
    assert {name: leaks for name, output in outputs.items() if (leaks := found_in(output, unnamed))} == {}


def test_typed_secret_is_not_printed(aftermath):
    asked = mistyped(aftermath)
    names = [" ".join(one)[:60] for one, _ in asked]
    outputs = dict(zip(names, aftermath.scene.commands(*(one for one, _ in asked)), strict=True))
    assert searched(outputs, dict(zip(names, [seen for _, seen in asked], strict=True))) == ({}, {})


def test_no_report_event_error_span_or_metric_shows_a_secret(aftermath):
    assert searched(aftermath.program, SECTIONS) == ({}, {})


def test_no_log_shows_a_secret(aftermath):
    outputs = {name: (aftermath.scene.here / name).read_text() for name in LOGS}
    assert searched(outputs, LOGS) == ({}, {})


def test_other_libraries_log_no_secret(aftermath):
    logged = (aftermath.scene.here / "theirs.txt").read_text()
    assert "HTTP Request: GET" in logged
    assert found_in(logged, HANDLED) == []


def test_no_message_shows_a_secret(aftermath):
    own = {"routing_key"}  # by which PagerDuty knows whose incident it is
    requests = [one for one in aftermath.scene.server.requests if one.method == "POST"]
    received = {}
    for one in requests:
        body = {name: value for name, value in one.json().items() if name not in own}
        kind = re.match(r"/(?:down/)?\w+", one.path)[0]
        received[kind] = received.get(kind, "") + json.dumps(body, ensure_ascii=False)
    seen = ("a source", "a task")
    assert searched(
        received,
        {
            "/services": (*seen, "a frame", "an outage"),
            "/v2": ("a task", "a frame"),
            "/hub": ("a task", "a frame", "an outage"),
            "/down/services": ("a task",),
            "/down/enqueue": ("a task",),
            "/down/hub": ("a task",),
            f"/{planted.key('apprise', 'path')}": ("a source",),
            f"/down/{planted.key('apprise down', 'path')}": ("a source",),
        },
    ) == ({}, {})


def test_stored_data_about_records_has_no_secret(aftermath):
    outputs = {}
    with psycopg.connect(aftermath.scene.store) as connection:
        for table in schema.metadata.sorted_tables:
            for column in table.columns:
                if column.name not in AS_RECEIVED.get(table.name, ()):
                    rows = connection.execute(f'SELECT "{column.name}"::text FROM pipeline.{table.name}').fetchall()
                    outputs[f"{table.name}.{column.name}"] = "\n".join(str(value) for (value,) in rows)
    assert searched(outputs, COLUMNS) == ({}, {})


def test_record_is_stored_as_received(aftermath):
    with redrive.connect(aftermath.scene.store) as store:
        letter = store.dlq.get(int(aftermath.letters[planted.card("the key of a letter")]))
    assert letter.record == {"ssn": planted.key("a field"), "remark": planted.text("a record")}


def test_note_about_a_letter_is_masked(tmp_path):
    with redrive.connect(tmp_path / "letters.db") as store:
        store.dlq.put({"id": 1}, "bad", pipeline="vendor", key="1")
        store.dlq.discard(key="1", note=planted.text("a note"))
        noted = [letter.note for letter in store.dlq.find()]
        noted += [entry.note for entry in store.dlq.history("1").events]
    assert len(noted) == 2
    assert all(marker("a note") in note for note in noted)
    assert found_in(str(noted)) == []


def test_echoed_credential_is_masked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with FaultyServer() as server:
        server.on("/*", echo(401))
        address = f"http://etl:{planted.key('hub')}@{server.url.removeprefix('http://')}/hub"
        (tmp_path / "redrive.toml").write_text(
            f'[channels]\nhub = {{ webhook = "{address}" }}\n[routes]\nP1 = "hub"\nP2 = "hub"\nP3 = "hub"\n'
        )
        with redrive.connect(tmp_path / "alerts.db") as store:
            (sent,) = store.alerts.test("P1")
    assert marker("a body") in sent.error
    assert planted.basic("hub") not in sent.error
    assert found_in(sent.error) == []


@pytest.mark.parametrize(
    "setting",
    [
        '[store]\nurl = "mysql://etl:{}@db/lake"',
        '[store]\nurl = "postgresql://etl:{}@db:port/lake"',
        '[channels.team]\nslack = "htp://hooks.example/{}"',
        '[channels.team]\npagerduty = "{} {}"',
        '[channels.team]\nwebhook = "etl:{}@hub.example"',
        '[channels.team]\napprise = "{}"',
        '[channels.team]\ncommand = "notify --key {}"',
        '[channels.team]\nslack = "https://hooks.example/{}"',
        '[[tables]]\nname = "orders"\nurl = "redis://etl:{}@db/lake"',
        '[alerts]\nslots = ["https://etl:{}@db/lake"]',
        '[alerts]\nlinks = {{ logs = "https://logs.example/{{nobody}}?token={}" }}',
        '[alerts]\npersist = "{}"',
        'password = "{}"',
        '[store]\nurl = "{}',
    ],
)
def test_no_settings_error_shows_a_secret(setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secret = planted.key("a setting")
    (tmp_path / "redrive.toml").write_text(setting.format(secret, secret))
    with pytest.raises(redrive.RedriveError) as refused:
        redrive.connect().close()
    assert str(refused.value)
    assert found_in(str(refused.value)) == []


def test_truncated_task_output_shows_no_half_secret():
    line = planted.line("stdout").encode() + b"\n"
    found = set()
    for shift in range(0, len(line), 29):
        output = OutputCollector()
        output.add(b"." * shift + b"\n" + line * (3 * KEPT // len(line)))
        shown = output.text()
        assert "bytes left out" in shown
        found |= set(found_in(shown, ["stdout"]))
    assert found == set()
