"""`redrive services`: calls of services, open circuits and exhausted keys that processes share."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from redrive.calls.metrics.publisher import MetricsBatch
from redrive.calls.metrics.window import QUARTER, MetricsWindow, window
from redrive.policy.consensus import BreakerReport, DrainedKey, ReportKind


@pytest.fixture
def trouble(store):
    """A service that is down, and one whose key is exhausted."""
    until = datetime.now(UTC) + timedelta(hours=8, seconds=30)
    store.shared.publish(
        [BreakerReport("shipfast", "worker-1", "17", ReportKind.OPEN, ago=3.0, retry_in=25.0)],
        [DrainedKey("partner", "0" * 16, "a1b2", until)],
    )


HEADER = "service circuit attempts success failures retries p95 machines next_probe used-up_keys last_word"


@pytest.fixture
def day(store):
    """What two services did: one of them for hours, and not always well."""
    now = window(datetime.now(UTC).timestamp(), QUARTER) + 300  # no boundary is near
    bank, atlas = MetricsWindow(), MetricsWindow()
    for hour in range(20):
        bank.succeeded(now - 3600 * hour, [0.02] * 50)
    for _ in range(200):
        bank.attempted(now - 7200, "transient", 1.0, retry=True, fault=True)
    bank.rejected(now, "circuit_open")
    bank.ended(now, "calls_failed", "fallbacks")
    bank.open_for(now - 7200, now - 7140)
    bank.succeeded(now - 90_000, [0.1] * 1_000)  # yesterday
    atlas.succeeded(now - 200_000, [0.1])  # nothing since
    store.services.add(MetricsBatch("17-a", 1, {"bank": bank, "atlas": atlas}))


def test_unreported_services_are_healthy(run, store):
    answer = run("services", "ls")
    assert answer.code == 0
    assert answer.out == HEADER.replace(" ", "\t") + "\n"
    assert answer.err == "no services recorded yet\n"
    assert json.loads(run("services", "ls", "--json").out) == []


def test_open_circuits_and_exhausted_keys_are_listed(run, trouble):
    partner, shipfast = (dict(zip(HEADER.split(), row, strict=True)) for row in run("services", "ls").rows)
    assert (partner["service"], partner["circuit"], partner["used-up_keys"]) == ("partner", "closed", "…a1b2")
    assert (shipfast["service"], shipfast["circuit"], shipfast["machines"]) == ("shipfast", "open", "worker-1")
    datetime.fromisoformat(shipfast["next_probe"])
    assert (shipfast["attempts"], shipfast["success"]) == ("0", "")
    told = json.loads(run("services", "ls", "--json").out)
    assert [one["state"] for one in told] == ["closed", "open"]
    assert told[0]["drained"][0]["key_id"] == "a1b2"
    assert 0 < told[1]["retry_in"] <= 25


def test_every_service_is_listed_with_its_last_day(run, terminal, day, trouble):
    atlas, bank, partner, shipfast = run("services", "ls").rows
    assert atlas[:5] == ["atlas", "closed", "0", "", "0"]
    assert bank[:6] == ["bank", "closed", "1200", "0.833333", "200", "0.2"]
    assert 0.01 < float(bank[6]) <= 0.025
    assert [partner[0], shipfast[0]] == ["partner", "shipfast"]
    told = json.loads(run("services", "ls", "--json").out)[1]["last_day"]
    assert (told["attempts"], told["failures"]["transient"], told["calls_failed"]) == (1200, 200, 1)
    shown = terminal("services", "ls", columns=80).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "83.3 %" in shown
    assert "1,200" in shown


def test_service_is_shown_with_all_known_facts(run, terminal, trouble):
    told = json.loads(run("services", "show", "shipfast", "--json").out)
    assert (told["service"], told["hosts"], told["everywhere"]) == ("shipfast", ["worker-1"], True)
    until = dict(run("services", "show", "partner").rows)["key …a1b2 exhausted until"]
    assert datetime.fromisoformat(until) > datetime.now(UTC)
    shown = terminal("services", "show", "partner").out
    assert "in 8 h" in shown


def test_last_day_of_a_service_is_a_chart_on_a_terminal(terminal, day):
    for columns, bar in ((80, "██ "), (120, "█")):
        shown = terminal("services", "show", "bank", columns=columns).out
        assert max(map(len, shown.splitlines())) <= columns
        assert "attempts, by the" in shown
        assert bar in shown
        assert "80.0 %" in shown  # the worst hour: 200 of 250
        assert "median, p95, p99" in shown
        assert "60 s, over all processes" in shown
    assert "by the quarter" in shown


def test_last_day_of_a_service_is_plain_data_in_a_pipe(run, day):
    told = dict(run("services", "show", "bank").rows)
    assert (told["attempts"], told["failed, transient"], told["not sent, circuit_open"]) == ("1200", "200", "1")
    assert (told["retries per success"], told["circuit not closed for"]) == ("0.2", "60.0")
    quarters = run("services", "show", "bank", "--quarters")
    assert quarters.out.split("\n")[0].split("\t")[:3] == ["at", "calls", "attempts"]
    assert len(quarters.rows) == 20
    assert sum(int(row[2]) for row in quarters.rows) == 1200
    assert sum(float(row[-1]) for row in quarters.rows) == pytest.approx(60, abs=0.01)


def test_endpoints_of_a_service_are_a_table(run, store):
    now, bank = datetime.now(UTC).timestamp(), MetricsWindow()
    bank.succeeded(now, [0.5] * 3, {"GET /orders/{id}": [0.5] * 3})
    bank.attempted(now, "transient", 1.0, retry=False, fault=True, endpoint="GET /orders/{id}")
    bank.attempted(now, "row", 0.1, retry=False, fault=False, endpoint="pay?token=hunter2hunter2")
    bank.ended(now, "calls_failed", "failed_4xx", endpoint="pay?token=hunter2hunter2")
    store.services.add(MetricsBatch("17-a", 1, {"bank": bank}))
    shown = run("services", "show", "bank", "--endpoints")
    header = shown.out.split("\n")[0].split("\t")
    orders, pay = (dict(zip(header, row, strict=True)) for row in shown.rows)
    assert list(orders.values())[:6] == ["GET /orders/{id}", "4", "4", "0.75", "1", "0"]
    assert list(pay.values())[1:7] == ["1", "1", "0.0", "0", "1", "1"]
    assert "hunter2" not in shown.out
    told = json.loads(run("services", "show", "bank", "--json").out)["endpoints"]
    assert [(one["endpoint"], one["faults"], one["mean_seconds"]) for one in told[:1]] == [("GET /orders/{id}", 1, 0.5)]


def test_document_of_a_service_has_every_window_of_the_day(run, day):
    told = json.loads(run("services", "show", "bank", "--json").out)
    assert len(told["windows"]) == 20
    assert sum(one["attempts"] for one in told["windows"]) == told["last_day"]["attempts"] == 1200
    assert sum(one["latencies"][2] for one in told["windows"]) == 1000
    assert [one["at"] for one in told["windows"]] == sorted(one["at"] for one in told["windows"])


def test_idle_service_is_shown_without_a_chart(terminal, day):
    shown = terminal("services", "show", "atlas").out
    assert "closed" in shown
    assert "by the hour" not in shown


def test_name_that_is_a_secret_is_not_shown(run, terminal, store):
    book = MetricsWindow()
    book.succeeded(datetime.now(UTC).timestamp(), [0.1])
    store.services.add(MetricsBatch("17-a", 1, {"bank?api_key=sk_live_51H8xQ2eZvKYlo2C": book}))
    for answer in (run("services", "ls"), run("services", "ls", "--json"), terminal("services", "ls")):
        assert "bank" in answer.out
        assert "sk_live_51H8xQ2eZvKYlo2C" not in answer.out


def test_unknown_service_is_an_error_that_lists_known_ones(run, trouble):
    answer = run("services", "show", "shipslow")
    assert answer.code == 64
    assert answer.sentence.endswith("Known services: partner, shipfast")


def test_reset_closes_the_circuit_and_with_keys_restores_them(run, trouble, store):
    assert run("services", "reset", "shipfast").err == "closed the circuit of shipfast\n"
    assert str(store.shared.services()[1].state) == "closed"
    answer = run("services", "reset", "partner", "--keys", "--json")
    assert json.loads(answer.out) == {"service": "partner", "reset": True, "keys": True}
    assert [one.drained for one in store.shared.services()] == [(), ()]


def test_reset_of_unknown_service_is_a_usage_error(run, store):
    answer = run("services", "reset", "typo")
    assert answer.code == 64
    assert "there is no service 'typo' in the store" in answer.err


def test_service_is_forgotten_with_go(run, day, trouble):
    answer = run("services", "forget", "bank")
    assert answer.err.startswith("would forget service bank: ")
    assert "bank" in run("services", "ls").out
    assert run("services", "forget", "bank", "--go").err.startswith("forgot service bank: ")
    assert "bank" not in run("services", "ls").out
    assert run("services", "forget", "bank", "--go").sentence.startswith("there is no service 'bank'")
