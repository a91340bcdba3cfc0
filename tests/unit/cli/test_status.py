"""`redrive status`: the summary of a store on one screen."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from redrive.policy.consensus import DrainedKey

STEPS = "Next steps:"


@pytest.fixture
def trouble(run, put, store):
    """A store with open letters, an alert of P1 and an exhausted key."""
    put(2)
    put(1, start=7, pipeline="billing")
    run("dlq", "escalate", "1", "--note", "for the vendor")
    run("alerts", "open", "export", "--severity", "P1", "--title", "the nightly export failed")
    store.shared.publish([], [DrainedKey("partner", "0" * 16, "a1b2", datetime.now(UTC) + timedelta(hours=1))])


@pytest.mark.usefixtures("store")
class TestEmptyStore:
    def test_every_section_is_shown_as_empty(self, terminal):
        shown = terminal("status").out
        for title, text in [("Last runs", "no runs yet"), ("Open alerts", "none"), ("Services with trouble", "none")]:
            assert f"{title}\n{text}\n" in shown
        assert STEPS not in shown

    def test_json_has_every_section(self, run):
        found = json.loads(run("status", "--json").out)
        assert {name: found[name] for name in ("runs", "alerts", "open_letters", "services")} == {
            "runs": [],
            "alerts": [],
            "open_letters": {},
            "services": [],
        }


@pytest.mark.usefixtures("trouble")
class TestFindings:
    def test_exit_code_is_zero(self, run):
        assert run("status").code == 0

    def test_escalated_letters_count_as_open(self, run):
        assert json.loads(run("status", "--json").out)["open_letters"] == {"vendor": 2, "billing": 1}

    def test_pipe_gets_one_row_for_each_finding(self, run):
        answer = run("status")
        assert answer.out.splitlines()[0] == "section\tid\tname\tstatus\tdetail"
        assert [(row[0], row[2], row[3]) for row in answer.rows] == [
            ("alert", "custom export", "P1"),
            ("letters", "vendor", "open"),
            ("letters", "billing", "open"),
            ("service", "partner", "closed"),
        ]
        assert answer.rows[-1][-1] == "1 exhausted key"

    def test_screen_fits_eighty_columns(self, terminal):
        shown = terminal("status", columns=80).out
        assert max(map(len, shown.splitlines())) <= 80
        assert "the nightly export failed" in shown

    def test_next_steps_name_the_queried_store(self, run):
        steps = run("status", "--store", ".redrive/redrive.db").err
        assert "redrive alerts show 1 --store .redrive/redrive.db\n" in steps
        assert "redrive dlq causes --store .redrive/redrive.db\n" in steps


def test_status_without_store_is_usage_error(run):
    assert run("status").code == 64
