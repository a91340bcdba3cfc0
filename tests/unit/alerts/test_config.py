"""Alert settings in `redrive.toml`: what they become, and the error for each invalid one."""

import re
import subprocess
import sys
from dataclasses import fields
from datetime import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.alerts.config.read import check_channels, read
from redrive.alerts.config.settings import (
    AlertSettings,
    Channel,
    ChannelKind,
    PipelineSettings,
    Quiet,
    Thresholds,
    WatchedTable,
)
from redrive.config import ConfigError, load
from redrive.model.alerts import Severity
from redrive.policy.time_of_day import TimeOfDay

P1, P2, P3 = Severity
ENVIRON = {"KEY": "pd-hunter2", "SLACK": "https://hooks.example/hunter2", "DB": "postgresql://u:hunter2@h/d"}


@pytest.fixture
def say(tmp_path):
    """Reads a file of this text."""

    def say(text, environ=ENVIRON, *, how=read):
        (tmp_path / "redrive.toml").write_text(text)
        return how(load(environ=environ, directory=tmp_path))

    return say


@pytest.fixture
def refused(say, tmp_path):
    """Return the error for an invalid file."""

    def refused(text, environ=ENVIRON, *, how=read):
        with pytest.raises(ConfigError) as raised:
            say(text, environ, how=how)
        said = str(raised.value)
        assert "\n" not in said
        assert "hunter2" not in said
        return said.removeprefix(f"{tmp_path}/")

    return refused


# ── valid settings ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_alerts_have_defaults_without_a_file(tmp_path):
    assert read(load(environ={}, directory=tmp_path)) == AlertSettings()


def test_file_without_alerts_keeps_their_defaults(say):
    assert say("[letters]\nstore_redacted = true\n") == AlertSettings()


EVERYTHING = """
[alerts]
enabled = true
persist = "2min"
recovery = 90
repeat = { P1 = "30min", P3 = "never" }
storm = 7
storm_window = "1min 30s"
quiet = { from = "22:00", until = 07:15:00, zone = "Europe/Berlin" }
exit_wait = "never"
every = 0.5
keep_days = 30
links = { logs = "https://logs.example/{pipeline}?run={run_id}&a={alert}&s={service}" }
slots = ["$DB", "postgres://other:5433/d"]
lags = ["probes.py:billing", "/jobs/probes.py:fees.all", "jobs.probes:shipping"]

[alerts.thresholds]
row_drop = "30%"
slot_bytes = "5GiB"
sla_grace = "5min"
growing_runs = 4
too_long = 3

[channels.oncall]
pagerduty = "$KEY"
[channels.europe]
pagerduty = "https://events.eu.pagerduty.com/v2/enqueue?routing_key=${KEY}"
[channels.team]
slack = "${SLACK}"
timeout = "3s"
[channels.hub]
webhook = "http://127.0.0.1:8080/x"
bearer = "$KEY"
headers = { X-Team = "data" }
signing_key = "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="
[channels.mail]
apprise = "mailto://user:$$ecret@mail.example"
[channels.lamp]
command = ["./lamp.sh", "$RED"]
[channels.pager]
command = ["pager"]
[channels.journal]
log = true

[routes]
P1 = ["oncall", "europe", "team"]
P2 = "team"
P3 = ["mail", "log"]

[pipelines.vendor]
sla = "06:30 Asia/Kolkata"
days = ["mon", "tue"]
runbook = "first this\\n\\n  then that\\n"
links = { wiki = "https://wiki.example/{{x}}/{pipeline}" }
routes = { P1 = "hub" }

[pipelines."silver.orders"]
days = "weekdays"
runbook = ["look", "run it again"]

[[tables]]
name = "silver.orders"
url = "$DB"
pipeline = "orders"
[[tables]]
name = "fees"
url = "data/fees.db"
time_column = "loaded_at"
fresh_within = "90min"
[[tables]]
name = "sums"
url = "duckdb:///data/sums.duckdb"
"""


def test_file_can_set_every_setting(say, tmp_path):
    found = say(EVERYTHING)
    assert found == AlertSettings(
        persist=120.0,
        recovery=90.0,
        repeat={P1: 1_800.0, P2: 14_400.0, P3: None},
        storm=7,
        storm_window=90.0,
        quiet=Quiet(time(22), time(7, 15), ZoneInfo("Europe/Berlin")),
        exit_wait=0.0,
        every=0.5,
        keep_days=30,
        links={"logs": "https://logs.example/{pipeline}?run={run_id}&a={alert}&s={service}"},
        slots=(ENVIRON["DB"], "postgres://other:5433/d"),
        lags=(f"{tmp_path}/probes.py:billing", "/jobs/probes.py:fees.all", "jobs.probes:shipping"),
        thresholds=Thresholds(row_drop=0.3, slot_bytes=5 * 2.0**30, sla_grace=300.0, growing_runs=4, too_long=3.0),
        channels={
            one.name: one
            for one in (
                Channel(name="oncall", kind="pagerduty", target=ENVIRON["KEY"]),
                Channel(
                    name="europe",
                    kind="pagerduty",
                    target=f"https://events.eu.pagerduty.com/v2/enqueue?routing_key={ENVIRON['KEY']}",
                ),
                Channel(name="team", kind="slack", target=ENVIRON["SLACK"], timeout=3.0),
                Channel(
                    name="hub",
                    kind="webhook",
                    target="http://127.0.0.1:8080/x",
                    headers={"X-Team": "data", "Authorization": f"Bearer {ENVIRON['KEY']}"},
                    signing_key=b"0123456789abcdef",
                ),
                Channel(name="mail", kind="apprise", target="mailto://user:$ecret@mail.example"),
                Channel(name="lamp", kind="command", target=(f"{tmp_path}/lamp.sh", "$RED")),
                Channel(name="pager", kind="command", target=("pager",)),
                Channel(name="journal", kind="log"),
            )
        },
        routes={P1: ("oncall", "europe", "team"), P2: ("team",), P3: ("mail", "log")},
        pipelines={
            "vendor": PipelineSettings(
                sla=TimeOfDay(6, 30, ZoneInfo("Asia/Kolkata")),
                days=frozenset({0, 1}),
                runbook=("first this", "then that"),
                links={"wiki": "https://wiki.example/{{x}}/{pipeline}"},
                routes={P1: ("hub",)},
            ),
            "silver.orders": PipelineSettings(days=frozenset(range(5)), runbook=("look", "run it again")),
        },
        tables=(
            WatchedTable(name="silver.orders", url=ENVIRON["DB"], pipeline="orders"),
            WatchedTable(
                name="fees",
                url=f"sqlite:///{tmp_path}/data/fees.db",
                time_column="loaded_at",
                fresh_within=5_400.0,
            ),
            WatchedTable(name="sums", url=f"duckdb:///{tmp_path}/data/sums.duckdb"),
        ),
    )
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("one", fields(Thresholds), ids=lambda one: one.name)
def test_every_threshold_can_be_set_to_its_default(say, one):
    """A threshold that is not a count needs a unit: `_MEASURES` in `read`."""
    found = say(f"[alerts.thresholds]\n{one.name} = {one.default}\n").thresholds
    assert found == Thresholds()
    assert type(getattr(found, one.name)) is type(one.default)


@pytest.mark.parametrize(
    ("text", "days"),
    [('"daily"', range(7)), ('"sun"', [6]), ('["sat", "sun", "sat"]', [5, 6]), ('"weekdays"', range(5))],
)
def test_days_can_be_written_in_several_ways(say, text, days):
    assert say(f"[pipelines.x]\ndays = {text}\n").pipelines["x"].days == frozenset(days)


# ── off ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_environment_overrides_whether_alerts_are_on(say):
    assert not say("[alerts]\nenabled = false\n", {}).enabled
    assert say("[alerts]\nenabled = false\n", {"REDRIVE_ALERTS": "on"}).enabled
    assert not say("[alerts]\nenabled = true\n", {"REDRIVE_ALERTS": "off"}).enabled
    assert not say("", {"REDRIVE_ALERTS": "0"}).enabled


def test_production_variables_are_optional_without_alerts(say, refused):
    for off in (say(EVERYTHING, {"REDRIVE_ALERTS": "off"}), say(EVERYTHING.replace("= true", "= false", 1), {})):
        assert not off.enabled
        assert {one.target for one in off.channels.values() if one.kind in ("pagerduty", "slack", "webhook")} == {""}
        assert [table.name for table in off.tables] == ["fees", "sums"]
        assert off.slots == ("postgres://other:5433/d",)
    assert "not set" in refused(EVERYTHING, {})


def test_file_is_checked_without_alerts(refused):
    assert refused("[routes]\nP9 = 'log'\n", {"REDRIVE_ALERTS": "off"}).startswith("redrive.toml, line 2: routes.P9")
    assert "enabled must be true or false" in refused("[alerts]\nenabled = 1\n", {"REDRIVE_ALERTS": "off"})


# ── what cannot be used ───────────────────────────────────────────────────────────────────────────────────────────────


def test_service_has_default_thresholds_except_its_own(tmp_path):
    text = "[alerts.thresholds]\ndown_faults = 9\n[services.bank]\ndown_seconds = '15min'\n"
    (tmp_path / "redrive.toml").write_text(text)
    found = read(load(environ={}, directory=tmp_path))
    assert found.limits_of("bank") == Thresholds(down_faults=9, down_seconds=900.0)
    assert found.limits_of("post") == Thresholds(down_faults=9)


SPAN = 'must be a span such as "90s", "5min" or "1h", or a number of seconds'
URL = "must be a URL such as https://host/path; the value is not shown, because it may hold a secret"
DATABASE = "must be a URL such as postgresql://user@host/database, sqlite:///path/to/file.db or duckdb:///path/to/file"
TEAM = "[channels.team]\nlog = true\n"
HUB = "[channels.team]\nwebhook = 'https://h/x'\n"
TABLE = "[[tables]]\nname = 'a'\nurl = 'a.db'\n"

REFUSED = {
    "[services.bank]\nrow_drop = '1%'\n": "line 2: services.bank.row_drop is not a setting",
    "[services.bank]\ndown_seconds = '5 mins'\n": f"line 2: services.bank.down_seconds {SPAN}, not '5 mins'",
    f"{TABLE}fresh_within = '1h'\n": "line 4: tables[0].fresh_within needs the other one: time_column and",
    f"{TABLE}time_column = 'at'\n": "line 4: tables[0].time_column needs the other one: time_column and",
    # [alerts]
    "[alert]\n": "line 1: alert is not a setting; did you mean 'alerts'?",
    "[alerts]\n\npresist = '5min'\n": "line 3: alerts.presist is not a setting; did you mean 'persist'?",
    "alerts = true\n": "line 1: alerts must be a table, [alerts], not a single value",
    "[alerts]\nenabled = 'yes'\n": "line 2: alerts.enabled must be true or false",
    "[alerts]\npersist = '5 mins'\n": f"line 2: alerts.persist {SPAN}, not '5 mins'",
    "[alerts]\npersist = '5'\n": f"line 2: alerts.persist {SPAN}, not '5'",
    "[alerts]\npersist = ''\n": f"line 2: alerts.persist {SPAN}, not ''",
    "[alerts]\npersist = '1h 1h'\n": f"line 2: alerts.persist {SPAN}, not '1h 1h'",
    "[alerts]\npersist = true\n": f"line 2: alerts.persist {SPAN}",
    "[alerts]\npersist = nan\n": f"line 2: alerts.persist {SPAN}",
    "[alerts]\npersist = 0\n": "line 2: alerts.persist must be more than 0 seconds",
    "[alerts]\nrecovery = -1\n": "line 2: alerts.recovery must be more than 0 seconds",
    "[alerts]\nevery = '0s'\n": "line 2: alerts.every must be more than 0 seconds",
    "[alerts]\nevery = '60w'\n": "line 2: alerts.every must be at most a year",
    "[alerts]\nstorm = 0\n": "line 2: alerts.storm must be a whole number from 1 up",
    "[alerts]\nstorm = 2.5\n": "line 2: alerts.storm must be a whole number from 1 up",
    "[alerts]\nkeep_days = 10000\n": "line 2: alerts.keep_days must be a whole number from 1 up to 3650",
    "[alerts]\nrepeat = '1h'\n": "line 2: alerts.repeat must be a table, [alerts.repeat], not a single value",
    "[alerts]\nrepeat = { p1 = '1h' }\n": "line 2: alerts.repeat.p1 is no tier; did you mean 'P1'?",
    "[alerts.repeat]\nP1 = '1h'\nP2 = 'sometimes'\n": f"line 3: alerts.repeat.P2 {SPAN}, not 'sometimes'",
    "[alerts]\nlinks = { '' = 'https://h/' }\n": "line 2: alerts.links.'' has an empty name",
    "[alerts]\nlinks = { a = 'https://h/{run}' }\n": (
        "line 2: alerts.links.a has an unknown placeholder '{run}'; did you mean '{run_id}'?"
    ),
    "[alerts]\nlinks = { a = 'https://h/{0}' }\n": (
        "line 2: alerts.links.a has an unknown placeholder '{0}'; there are {pipeline}, {run_id}, {alert}, {service}, "
    ),
    "[alerts]\nlinks = { a = 'https://h/{alert!r}' }\n": "line 2: alerts.links.a has an unknown placeholder '{alert}'",
    "[alerts]\nlinks = { a = 'https://h/{run_id' }\n": "line 2: alerts.links.a has an unmatched brace",
    "[alerts]\nlinks = { a = 'h/hunter2' }\n": f"line 2: alerts.links.a {URL}",
    "[alerts]\nslots = 'postgresql://h'\n": "line 2: alerts.slots must be a list of URLs of PostgreSQL servers",
    "[alerts]\nslots = [\n'postgresql://h/d',\n'mysql://u:hunter2@h'\n]": (
        "line 4: alerts.slots[1] must be a URL such as postgresql://user@host/database"
    ),
    "[alerts]\nslots = ['postgresql://u:hunter2@h:port/d']": "line 2: alerts.slots[0] must be a URL such as",
    "[alerts]\nslots = ['postgresql://u:a@hunter2@h/d']": (
        "line 2: alerts.slots[0] cannot be used: the password in the URL has an unencoded '@'; write %40"
    ),
    "[[tables]]\nname = 'a'\nurl = 'postgresql://u:a@hunter2@h/d'\n": (
        "line 3: tables[0].url cannot be used: the password in the URL has an unencoded '@'; write %40"
    ),
    "[[tables]]\nname = 'a'\nurl = 'postgresql:/u:hunter2@h/d'\n": (
        "line 3: tables[0].url is not complete: it looks like a URL without its '://'"
    ),
    "[alerts]\nlags = ['probes.py']\n": (
        "line 2: alerts.lags[0] must be FILE:NAME or MODULE:NAME, such as \"probes.py:billing\", not 'probes.py'"
    ),
    "[alerts]\nlags = ['probes.py:a b']\n": "line 2: alerts.lags[0] must be FILE:NAME or MODULE:NAME",
    "[alerts]\nlags = ['https://h/hunter2:x']\n": "line 2: alerts.lags[0] must be FILE:NAME or MODULE:NAME",
    "[alerts]\nlags = 'probes.py:a'\n": "line 2: alerts.lags must be a list of probes, as in",
    # quiet hours
    "[alerts]\nquiet = '22:00'\n": "line 2: alerts.quiet must be a table, [alerts.quiet], not a single value",
    "[alerts.quiet]\nfrom = '22:00'\nuntil = '07:00'\n": "line 1: alerts.quiet has no zone",
    "[alerts.quiet]\nfrom = '22:00'\nzone = 'UTC'\n": "line 1: alerts.quiet has no until",
    "[alerts.quiet]\nfrom = '22'\nuntil = '07:00'\n": (
        "line 2: alerts.quiet.from must be a time of day such as \"06:30\", not '22'"
    ),
    "[alerts.quiet]\nfrom = '24:00'\nuntil = '07:00'\n": "line 2: alerts.quiet.from must be a time of day",
    "[alerts.quiet]\nfrom = '07:00'\nuntil = '07:00'\nzone = 'UTC'\n": (
        "line 3: alerts.quiet.until is the same as from, so that it would be always quiet or never"
    ),
    "[alerts]\nquiet = { from = '22:00', until = '07:00', zone = 'Europe/Berln' }\n": (
        "line 2: alerts.quiet.zone names an unknown time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?"
    ),
    "[alerts]\nquiet.from = '22:00'\nquiet.until = '07:00'\nquiet.zone = 'new york'\n": (
        "line 4: alerts.quiet.zone names an unknown time zone 'new york'; did you mean 'America/New_York'?"
    ),
    "[alerts]\nquiet = { from = '22:00', until = '07:00', zone = '../../etc' }\n": (
        "line 2: alerts.quiet.zone names an unknown time zone '../../etc'; write one like \"Europe/Berlin\""
    ),
    "[alerts]\nquiet = { from = '22:00', until = '07:00', zone = '' }\n": "line 2: alerts.quiet.zone must be a text",
    # thresholds
    "[alerts.thresholds]\nrow_dorp = 0.2\n": (
        "line 2: alerts.thresholds.row_dorp is not a setting; did you mean 'row_drop'?"
    ),
    "[alerts]\nthresholds = 3\n": "line 2: alerts.thresholds must be a table, [alerts.thresholds], not a single value",
    "[alerts.thresholds]\nrow_drop = 20\n": (
        'line 2: alerts.thresholds.row_drop must be a share above 0 and up to 1, such as 0.05 or "5%"'
    ),
    "[alerts.thresholds]\nrow_drop = '20'\n": "line 2: alerts.thresholds.row_drop must be a share",
    "[alerts.thresholds]\nrow_drop = '5min'\n": "line 2: alerts.thresholds.row_drop must be a share",
    "[alerts.thresholds]\nslot_bytes = '10 gigs'\n": (
        'line 2: alerts.thresholds.slot_bytes must be a size such as "10GB" or "512MiB", or a number of bytes above 0,'
    ),
    "[alerts.thresholds]\npending_day = '100'\n": "line 2: alerts.thresholds.pending_day must be a whole number",
    "[alerts.thresholds]\ntoo_long = 0\n": "line 2: alerts.thresholds.too_long must be a number above 0",
    "[alerts.thresholds]\nsla_grace = -1\n": "line 2: alerts.thresholds.sla_grace must be 0 seconds or more",
    "[alerts.thresholds]\nlag_seconds = 'never'\n": f"line 2: alerts.thresholds.lag_seconds {SPAN}, not 'never'",
    # channels
    "[channels]\nteam = '$SLACK'\n": "line 2: channels.team must be a table, [channels.team], not a single value",
    "[channels.'']\nlog = true\n": "line 1: channels.'' has an empty name",
    "[channels.team]\nslcak = '$SLACK'\n": "line 2: channels.team.slcak is not a setting; did you mean 'slack'?",
    "[channels.team]\n": (
        "line 1: channels.team must have exactly one of apprise, webhook, slack, pagerduty, command or log; it has none"
    ),
    "[channels.team]\nwebhook = '$SLACK'\nslack = '$SLACK'\n": (
        "line 1: channels.team must have exactly one of apprise, webhook, slack, pagerduty, command or log; "
        "it has webhook and slack"
    ),
    "[channels.team]\nslack = 'hooks.example/hunter2'\n": f"line 2: channels.team.slack {URL}",
    "[channels.team]\nslack = 'ftp://hooks.example/hunter2'\n": f"line 2: channels.team.slack {URL}",
    "[channels.team]\nslack = 'https://'\n": f"line 2: channels.team.slack {URL}",
    "[channels.team]\nslack = 'https://h:99999/hunter2'\n": f"line 2: channels.team.slack {URL}",
    "[channels.team]\nslack = 'https://[::1/hunter2'\n": f"line 2: channels.team.slack {URL}",
    "[channels.team]\nwebhook = 'https://h/hun ter2'\n": f"line 2: channels.team.webhook {URL}",
    "[channels.team]\nwebhook = '$KEY'\n": f"line 2: channels.team.webhook, with the value of KEY, {URL}",
    "[channels.team]\nslack = ['https://h/hunter2']\n": "line 2: channels.team.slack must be a text",
    "\n[channels.team]\n\nslack = '$SLACK_URL'\n": (
        "line 4: channels.team.slack names the variable SLACK_URL, which is not set; "
        "set it, or REDRIVE_ALERTS=off to disable alerts here"
    ),
    "[channels.team]\nslack = 'https://h/$/hunter2'\n": (
        "line 2: channels.team.slack has a $ that names no variable; write $NAME, or $$ for a dollar sign"
    ),
    "[channels.team]\npagerduty = '$SLACK'\n": (
        "line 2: channels.team.pagerduty, with the value of SLACK, must be the integration key of a PagerDuty service"
    ),
    "[channels.team]\napprise = 'hunter2'\n": "line 2: channels.team.apprise must be a URL of apprise's such as",
    "[channels.team]\ncommand = 'notify hunter2'\n": (
        'line 2: channels.team.command must be a list of words, as in ["notify", "--now"]'
    ),
    "[channels.team]\ncommand = []\n": "line 2: channels.team.command must be a list of words",
    "[channels.team]\ncommand = ['notify', 3]\n": "line 2: channels.team.command[1] must be a text",
    "[channels.team]\nlog = false\n": "line 2: channels.team.log must be true",
    "[channels.team]\nlog = true\nbearer = '$KEY'\n": "line 3: channels.team.bearer is for webhooks only",
    f"{HUB}headers = {{ Host = 'x' }}\n": "line 3: channels.team.headers.Host is not a header that can be set here",
    f"{HUB}headers = {{ webhook-id = 'x' }}\n": "line 3: channels.team.headers.webhook-id is not a header that can be",
    f"{HUB}headers = {{ 'X Y' = 'x' }}\n": "line 3: channels.team.headers.'X Y' is not a header that can be set here",
    f'{HUB}headers = {{ X = "a\\nb" }}\n': "line 3: channels.team.headers.X must be printable ASCII; the value is",
    f"{HUB}headers = {{ authorization = 'x' }}\nbearer = '$KEY'\n": (
        "line 4: channels.team.bearer is a header Authorization, and there is another one"
    ),
    f"{HUB}bearer = '$TOKEN'\n": "line 3: channels.team.bearer names the variable TOKEN, which is not set",
    f"{HUB}signing_key = 'hunter2'\n": "line 3: channels.team.signing_key must have at least 16 bytes; the value is",
    f"{HUB}signing_key = 'whsec_hunter2!'\n": "line 3: channels.team.signing_key must be base64 after whsec_; the",
    "[channels.log]\nslack = '$SLACK'\n": "line 1: channels.log must have another name: 'log' is always the log",
    "[channels.team]\nlog = true\ntimeout = 0\n": "line 3: channels.team.timeout must be more than 0 seconds",
    "[channels.team]\nlog = true\ntimeout = '2min'\n": "line 3: channels.team.timeout must be at most 60 seconds",
    '[channels."a\\u0000b"]\nlog = true\n': "line 1: channels.'a\\x00b' has a name that cannot be shown",
    "[channels.on.call]\nlog = true\n": (
        "line 1: channels.on.call is not a setting; a name with a dot is quoted: [channels.'on.call']"
    ),
    # routes
    f"{TEAM}": "line 1: channels.team is in no route, so it receives no alerts; add [routes] with P1 = ['team']",
    "[routes]\nP4 = 'log'\n": "line 2: routes.P4 is no tier; routes has P1, P2 and P3",
    "[routes]\np1 = 'log'\n": "line 2: routes.p1 is no tier; did you mean 'P1'?",
    f"{TEAM}[routes]\nP1 = 'taem'\n": "line 4: routes.P1 names an unknown channel 'taem'; did you mean 'team'?",
    f"{TEAM}[routes]\nP1 = [\n'team',\n'x']\n": (
        "line 6: routes.P1[1] names an unknown channel 'x'; there are log and team"
    ),
    "[routes]\nP1 = 'https://h/hunter2'\n": "line 2: routes.P1 must name a channel; its address belongs in",
    "[routes]\nP1 = '0123456789hunter20123456789hunter2'\n": "line 2: routes.P1 names an unknown channel …; there is",
    "[routes]\nP1 = []\n": 'line 2: routes.P1 names no channel; write "log" if the log is enough',
    "[routes]\nP1 = 3\n": "line 2: routes.P1 must be a list of names of channels",
    "[routes]\nP1 = ['log', 'log']\n": "line 2: routes.P1 names the channel 'log' more than once",
    f"{TEAM}[routes]\nP2 = 'team'\n": (
        'line 3: routes has no channel for P1, a higher severity than those it has; write "log" for none'
    ),
    # pipelines
    "[pipelines.'']\n": "line 1: pipelines.'' has an empty name",
    "[pipelines.x]\nslo = '06:30 UTC'\n": "line 2: pipelines.x.slo is not a setting; did you mean 'sla'?",
    "[pipelines.silver.orders]\ndays = 'daily'\n": (
        "line 1: pipelines.silver.orders is not a setting; a name with a dot is quoted: [pipelines.'silver.orders']"
    ),
    "[pipelines.x]\nsla = '06:30'\n": (
        "line 2: pipelines.x.sla must be a time of day and a time zone, as in \"06:30 Asia/Kolkata\", not '06:30'"
    ),
    "[pipelines.x]\nsla = '6:30 UTC'\n": "line 2: pipelines.x.sla must be a time of day such as \"06:30\", not '6:30'",
    "[pipelines.x]\nsla = '06:30 Asia/Calcuta'\n": (
        "line 2: pipelines.x.sla names an unknown time zone 'Asia/Calcuta'; did you mean 'Asia/Calcutta'?"
    ),
    "[pipelines.x]\nsla = 6\n": "line 2: pipelines.x.sla must be a text",
    "[pipelines.x]\ndays = ['mon',\n'tues']\n": (
        "line 3: pipelines.x.days[1] names an unknown day 'tues'; did you mean 'tue'?"
    ),
    "[pipelines.x]\ndays = 'payday'\n": "line 2: pipelines.x.days names an unknown day 'payday'",
    "[pipelines.x]\ndays = []\n": "line 2: pipelines.x.days names no day",
    "[pipelines.x]\ndays = 1\n": "line 2: pipelines.x.days must be a list of weekdays",
    "[pipelines.x]\nrunbook = [1]\n": "line 2: pipelines.x.runbook must be a list of steps, each a text",
    "[pipelines.x]\nrunbook = ' '\n": "line 2: pipelines.x.runbook must be a text",
    "[pipelines.x]\nlinks = { a = 'https://h/{pipelin}' }\n": (
        "line 2: pipelines.x.links.a has an unknown placeholder '{pipelin}'; did you mean '{pipeline}'?"
    ),
    "[pipelines.x.routes]\nP1 = 'nobody'\n": "line 2: pipelines.x.routes.P1 names an unknown channel 'nobody'",
    # tables
    "[tables]\nname = 'a'\n": "line 1: tables must be a list of tables: write [[tables]] above each",
    f"{TABLE}[[tables]]\nname = 'b'\n": "line 4: tables[1] has no url",
    "[[tables]]\nurl = 'b.db'\n": "line 1: tables[0] has no name",
    f"{TABLE}\n{TABLE}": "line 6: tables[1].name is 'a' for a second time; every table has a name of its own",
    f"{TABLE}pipelin = 'x'\n": "line 4: tables[0].pipelin is not a setting; did you mean 'pipeline'?",
    f"{TABLE}pipeline = ''\n": "line 4: tables[0].pipeline must be a text",
    "[[tables]]\nname = 'a'\nurl = 'postgers://u:hunter2@h/d'\n": f"line 3: tables[0].url {DATABASE}",
    "[[tables]]\nname = 'a'\nurl = 'sqlite://'\n": f"line 3: tables[0].url {DATABASE}",
    "[[tables]]\nname = 'a'\nurl = ':memory:'\n": f"line 3: tables[0].url {DATABASE}",
    "[[tables]]\nname = 'a'\nurl = '$NOWHERE'\n": (
        "line 3: tables[0].url names the variable NOWHERE, which is not set; set it, or REDRIVE_ALERTS=off"
    ),
}


@pytest.mark.parametrize(("text", "says"), REFUSED.items(), ids=list(REFUSED.values()))
def test_invalid_setting_is_rejected_with_file_line_and_key(refused, text, says):
    assert refused(text).startswith(f"redrive.toml, {says}")


KEYS = [
    *(f"alerts.{one.name}" for one in fields(AlertSettings)),
    *(f"alerts.thresholds.{one.name}" for one in fields(Thresholds)),
    *("alerts.quiet.from", "alerts.quiet.until", "alerts.quiet.zone", "alerts.repeat.P1", "alerts.links.x"),
    *(f"channels.x.{one}" for one in (*get_args(ChannelKind), "timeout")),
    *("channels", "channels.x", "routes", "routes.P1", "routes.P3", "pipelines", "pipelines.x", "tables"),
    *(f"pipelines.x.{one.name}" for one in fields(PipelineSettings)),
    *("pipelines.x.routes.P2", "pipelines.x.links.y", "alerts", "store.url", "letters.redact", "nonsense.x"),
]
VALUES = [
    *("0", "1", "-1", "2.5", "nan", "-inf", "true", "false", "9" * 40, "1e300", "2026-01-01", "07:30:00"),
    *('""', '" "', '"5min"', '"5%"', '"10GB"', '"never"', '"UTC"', '"22:00"', '"06:30 UTC"', '"x"', '"log"', '"daily"'),
    *(
        '"$"',
        '"$X"',
        '"${X"',
        '"$KEY"',
        '"{"',
        '"{x}"',
        '"https://h/{alert}"',
        '"https://["',
        '"sqlite:///"',
        '"\\u0000"',
    ),
    *(
        "[]",
        "{}",
        '[""]',
        "[[]]",
        "[{}]",
        '["x"]',
        '["log"]',
        "[1, 2]",
        '["mon"]',
        '["a.py:b"]',
        "{ x = 1 }",
        '{ "" = "" }',
    ),
    *(
        '[{ name = "x", url = "y" }]',
        '[{ name = "x", url = "postgresql://h/d" }]',
        "{ log = true }",
        '["postgresql://h"]',
    ),
]


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=1, max_size=8), st.booleans())
def test_any_file_is_read_or_rejected_in_one_sentence(said, off):
    text = "".join(f"{key} = {value}\n" for key, value in said.items())
    with TemporaryDirectory() as directory:
        file = Path(directory) / "redrive.toml"
        file.write_text(text)
        found = outcome(directory, {**ENVIRON, **({"REDRIVE_ALERTS": "off"} if off else {})})
    if not isinstance(found, AlertSettings):
        assert re.fullmatch(rf"{re.escape(str(file))}, line [1-{len(said)}]: [a-z].*", found)


def outcome(directory, environ):
    try:
        return read(load(environ=environ, directory=directory))
    except ConfigError as error:
        return str(error)


def test_channel_without_its_library_is_rejected_with_command(say, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    mail = "[channels.mail]\napprise = 'mailto://u:hunter2@h'\n[routes]\nP1 = 'mail'\n"
    assert refused(mail) == (
        "redrive.toml, line 2: channels.mail.apprise needs apprise, which is not installed: "
        "pip install 'redrive[alerts]'"
    )
    assert not say(mail, {"REDRIVE_ALERTS": "off"}).enabled


# ── a closer look ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
@pytest.mark.parametrize("url", ["nosuch://u:hunter2@h", "slack://hunter2"])
def test_apprise_checks_its_urls_in_the_full_check(say, refused, caplog, url):
    text = f"[channels.mail]\napprise = '{url}'\n[routes]\nP1 = 'mail'\n"
    assert say(text).channels["mail"].target == url
    assert refused(text, how=check_channels) == (
        "redrive.toml, line 2: channels.mail.apprise is a URL that apprise does not understand; "
        "the value is not shown, because it may hold a secret"
    )
    assert caplog.text == ""


@pytest.mark.parametrize("program", ["no-such-program-anywhere", "./lamp.sh"])
def test_program_must_exist_in_the_full_check(say, refused, program):
    text = f"[channels.lamp]\ncommand = ['{program}', 'hunter2']\n[routes]\nP1 = 'lamp'\n"
    assert refused(text, how=check_channels) == (
        "redrive.toml, line 2: channels.lamp.command names a program that does not exist or is not executable"
    )


@pytest.mark.process
def test_usable_channels_pass_the_full_check(say, tmp_path):
    (tmp_path / "lamp.sh").write_text("#!/bin/sh\n")
    (tmp_path / "lamp.sh").chmod(0o755)
    text = EVERYTHING.replace('["pager"]', f'["{sys.executable}"]')
    assert say(text, how=check_channels) == say(text)


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_reading_imports_no_channel_library(tmp_path):
    (tmp_path / "redrive.toml").write_text("[channels.x]\napprise = 'mailto://u:p@h'\n[routes]\nP1 = 'x'\n")
    program = (
        "import sys; from redrive.config import load; from redrive.alerts.config.read import read; read(load());"
        "print(*[name for name in ('apprise', 'sqlalchemy', 'difflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# ── the page about it ─────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| `(\w+)` \| (?:`(.+?)`|none) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


def environ_for(text):
    values = {"DATABASE_URL": "postgresql://h/d", "SLACK_URL": "https://h/x", "HUB_KEY": 16 * "x"}
    return {name: values.get(name, "x") for name in re.findall(r"\$\{?(\w+)", text)}


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "toml" and not text.startswith("# refused")])
def test_examples_of_the_page_can_be_used(say, text):
    if "\nholidays = " in text:
        pytest.importorskip("holidays")
    assert say(text, environ_for(text)) != AlertSettings() or "[store]" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [(text, said) for (_, text), (_, said) in pairwise(BLOCKS) if text.startswith("# refused")],
)
def test_rejected_examples_of_the_page_have_its_message(refused, text, said):
    assert refused(text) == said.rstrip()


@pytest.mark.parametrize(("key", "default"), [(key, default) for key, default, _ in ROWS])
def test_defaults_of_the_page_are_the_defaults(say, key, default):
    table = "alerts.thresholds" if key in {one.name for one in fields(Thresholds)} else "alerts"
    assert say(f"[{table}]\n{key} = {default}\n" if default else "") == AlertSettings()


def test_every_key_is_on_the_page():
    text = "\n".join(text for kind, text in BLOCKS if kind == "toml")
    in_tables = {"channels", "routes", "pipelines", "tables", "conditions", "maintenance", "services"}
    assert {key for key, _, _ in ROWS} == {
        *(one.name for one in fields(AlertSettings) if one.name not in {*in_tables, "thresholds"}),
        *(one.name for one in fields(Thresholds)),
    }
    keys = {
        *get_args(ChannelKind),
        "timeout",
        *(one.name for one in (*fields(PipelineSettings), *fields(WatchedTable))),
    }
    assert [key for key in keys if not re.search(rf"^{key} = ", text, re.MULTILINE)] == []
    assert all(re.search(rf"^\[+{table}\b", text, re.MULTILINE) for table in in_tables)


def test_every_variable_of_the_page_counts(tmp_path):
    for variable in re.findall(r"^\| `(REDRIVE_\w+)`", PAGE.read_text(), re.MULTILINE):
        value = {
            "REDRIVE_RETENTION_RUNS": "90d",
            "REDRIVE_RETENTION_LETTERS": "90d",
            "REDRIVE_CONFIG": "/dev/null",
        }.get(variable, "1")
        assert load(environ={variable: value}, directory=tmp_path) != load(environ={}, directory=tmp_path)
