"""`redrive config`: the current settings, and where they come from."""

import json


def test_settings_are_shown_with_their_source(run, here, monkeypatch):
    (here / "redrive.toml").write_text("[store]\npatience = 5\n[letters]\nredact = ['card', 'ssn']\n")
    monkeypatch.setenv("REDRIVE_ALERTS", "off")
    answer = run("config", "show")
    file = here / "redrive.toml"
    assert answer.rows == [
        ["store.patience", "5", f"{file}, line 2"],
        ["letters.redact", "card, ssn", f"{file}, line 4"],
        ["alerts.enabled", "off", "REDRIVE_ALERTS"],
    ]
    assert answer.err == f"read {file}\n"
    assert json.loads(run("config", "show", "--json").out)["file"] == str(file)


def test_address_of_the_heartbeat_is_not_shown(run, here):
    (here / "redrive.toml").write_text('[alerts]\nheartbeat = "https://hc.example/ping/4ff1a0c2"\n')
    assert [row[:2] for row in run("config", "show").rows] == [["alerts.heartbeat", "…"]]
    (here / "redrive.toml").write_text('[alerts]\nheartbeat = "$HEARTBEAT_URL"\n')
    assert [row[:2] for row in run("config", "show").rows] == [["alerts.heartbeat", "$HEARTBEAT_URL"]]


def test_directory_without_a_file_is_reported(run, here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    assert run("config").err == "no redrive.toml found; settings that are not listed have their defaults\n"


def test_settings_that_other_commands_reject_are_warned_of(run, here, store):
    (here / "redrive.toml").write_text('[routes]\nP1 = "nobody"\n')
    refused = run("alerts", "ls")
    assert refused.code == 64
    shown = run("config", "show")
    assert shown.code == 0
    assert f"warning: other commands reject these settings: {refused.sentence}" in shown.err
    assert json.loads(run("config", "show", "--json").out)["problem"] == refused.sentence
