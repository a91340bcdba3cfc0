"""Open alerts whose channels are added, replaced or renamed: which channels get them, and what other processes send."""

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest

from redrive.alerts.config.settings import PipelineSettings, Quiet
from redrive.alerts.delivery.channels import DeliveryFailed
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.service import Alerts
from redrive.model.alerts import Severity
from tests.support.alerts import NOON, P1, P2, P3, Recorder, after, finding, judgement, raising, settings, watched

HOUR = 3_600.0


class Clock:
    def __init__(self):
        self.at = NOON

    def now(self):
        return self.at


class Site:
    """A store whose watch may be started again with other settings."""

    def __init__(self, store):
        self.store, self.clock, self.recorder = store, Clock(), Recorder()
        watched(store)

    def configure(self, *channels, **options):
        self.desk = Alerts(self.store.database, settings(*channels, **options), clock=self.clock)
        self.desk.sender = Sender(self.store.database, self.desk.settings, deliver=self.recorder)
        self.desk.sender.wake = lambda: None  # the test decides when messages are sent
        return self.desk

    def find(self, *findings, gone=()):
        self.desk.ledger.apply(judgement(*findings, judged=gone), now=self.clock.now())

    def look(self, seconds):
        self.clock.at = after(seconds)
        self.desk.pass_time()
        self.desk.send_due()

    def fail(self, channel, *, permanent=False):
        self.recorder.failing[channel] = raising(DeliveryFailed("down", permanent=permanent))

    def sent(self, channel):
        return [what for what, _ in self.recorder.said(channel)]


@pytest.fixture
def site(store):
    return Site(store)


class TestAddedChannel:
    def test_added_channel_gets_open_alert_once_and_reminders(self, site):
        site.configure("hub")
        site.find(finding())
        site.look(1)
        site.configure("hub", "oncall")
        site.look(10)
        site.look(20)
        assert site.sent("oncall") == ["opened"]
        site.look(HOUR + 30)
        assert (site.sent("hub"), site.sent("oncall")) == (["opened", "repeated"], ["opened", "repeated"])

    @pytest.mark.parametrize("permanent", [True, False], ids=["404", "503"])
    def test_replaced_dead_channel_does_not_block_the_alert(self, site, permanent):
        site.configure("hub")
        site.fail("hub", permanent=permanent)
        site.find(finding())
        site.look(1)
        site.configure("team")
        site.look(10)
        site.look(HOUR + 30)
        assert site.sent("team") == ["opened", "repeated"]

    def test_renamed_channel_gets_alert_and_resolution(self, site):
        site.configure("hub")
        site.find(finding())
        site.look(1)
        site.configure("team")
        site.look(10)
        site.find(gone=["run:vendor:failed"])
        site.look(20)
        assert site.sent("team") == ["opened", "resolved"]

    def test_removed_channel_gets_only_the_resolution(self, site):
        site.configure("hub", "team")
        site.find(finding())
        site.look(1)
        site.configure("hub", "team", routes=dict.fromkeys(Severity, ("team",)))
        site.look(HOUR + 30)
        assert (site.sent("hub"), site.sent("team")) == (["opened"], ["opened", "repeated"])
        site.find(gone=["run:vendor:failed"])
        site.look(HOUR + 40)
        assert site.sent("hub") == ["opened", "resolved"]

    def test_routes_of_the_pipeline_count(self, site):
        site.configure("hub")
        site.find(finding())
        site.look(1)
        own = {"vendor": PipelineSettings(routes={P1: ("oncall",)})}
        site.configure("hub", "oncall", routes={P1: ("hub",)}, pipelines=own)
        site.look(10)
        assert site.sent("oncall") == ["opened"]

    def test_added_channel_gets_no_acknowledged_alert(self, site):
        site.configure("hub")
        site.find(finding())
        site.look(1)
        site.desk.acknowledge(site.desk.find()[0].id, by="me")
        site.configure("hub", "oncall")
        site.look(HOUR + 30)
        assert site.sent("oncall") == []

    def test_added_channel_gets_alert_when_silence_ends(self, site):
        site.configure("hub")
        site.find(finding())
        site.look(1)
        site.desk.silence(seconds=HOUR, reason="known", subject="vendor")
        site.configure("hub", "oncall")
        site.look(10)
        assert site.sent("oncall") == []
        site.look(HOUR + 30)
        site.look(HOUR + 40)
        assert site.sent("oncall") == ["opened"]

    def test_added_channel_gets_no_absent_level(self, site):
        site.configure("hub")
        site.find(finding("level:slot:a", key="slot:a"))
        site.look(1)
        site.clock.at = after(5)
        site.find(gone=["level:slot:a"])
        site.configure("hub", "oncall")
        site.look(10)
        assert site.sent("oncall") == []

    def test_added_channel_waits_for_end_of_quiet_hours(self, site):
        site.configure("hub")
        site.find(finding(urgency=P3))
        site.look(1)
        site.configure("hub", "oncall", quiet=Quiet(time(12), time(14), ZoneInfo("UTC")))
        site.look(10)
        assert site.sent("oncall") == []
        (waiting,) = site.desk.unsent()
        assert (waiting.channel, waiting.digest) == ("oncall", True)
        assert waiting.due_at == datetime(2027, 3, 1, 14, tzinfo=UTC)

    def test_less_severe_alert_skips_channels_of_its_severity(self, site):
        site.configure("hub", "mail", routes={P1: ("hub",), P3: ("mail",)})
        site.find(finding("run:a:failed", P1), finding("run:b:failed", P3))
        site.look(1)
        site.find(gone=["run:a:failed"])
        site.look(86_500)
        assert (site.sent("hub"), site.sent("mail")) == (["opened", "repeated"], [])


class TestDroppedMessage:
    def test_reopened_alert_reaches_channel_of_dropped_message(self, site):
        site.configure("hub", "pager:pagerduty")
        site.fail("hub")
        site.find(finding())
        site.look(1)
        number = site.desk.find()[0].id
        site.desk.snooze(number, seconds=2 * HOUR)
        site.desk.acknowledge(number, by="me")
        site.recorder.failing.clear()
        site.look(1_000)
        site.desk.snooze(number, seconds=HOUR)
        site.look(2 * HOUR + 30)
        site.find(gone=["run:vendor:failed"])
        site.look(2 * HOUR + 40)
        assert site.sent("hub") == ["opened", "resolved"]
        assert site.sent("pager") == ["opened", "acknowledged", "repeated", "resolved"]


class TestOtherProcesses:
    def test_reminder_waits_for_the_process_with_the_channel(self, site):
        site.configure("theirs")
        site.find(finding(urgency=P2))
        site.look(1)
        site.configure("ours")
        site.look(5 * HOUR)
        assert [(one.channel, one.what) for one in site.desk.unsent()] == [("theirs", "repeated")]
        site.configure("theirs")
        site.desk.send_due()
        assert site.sent("theirs") == ["opened", "repeated"]

    def test_messages_waiting_for_other_processes_are_listed(self, site):
        site.configure("hub")
        site.fail("hub")
        site.find(finding())
        site.look(1)
        assert site.desk.unconfigured() == []
        site.configure("team")
        assert [one.channel for one in site.desk.unconfigured()] == ["hub"]
