"""Two days and a half with the faults of `bench/second_week.py`, which runs the whole week and lists every message."""

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import incidents
import second_week


@pytest.fixture(scope="module")
def lived():
    log = logging.getLogger("redrive")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with second_week.directory() as here:
            yield second_week.simulate(here, second_week.SHORT)
    finally:
        log.setLevel(level)


class TestEveryMessage:
    def test_none_is_a_false_all_clear(self, lived):
        assert lived.verdict.false_all_clears == []

    def test_is_needed(self, lived):
        assert lived.verdict.not_needed == []

    def test_that_is_needed_arrives_in_time(self, lived):
        assert lived.verdict.missed == []

    def test_belongs_to_one_alert_per_cause(self, lived):
        assert lived.verdict.incidents == lived.verdict.causes == 12

    def test_about_open_alerts_comes_first_once_a_channel_is_back(self, lived):
        """Any due message can find that the channel is back; from then on resolved alerts come last."""
        back = second_week.MONDAY + incidents.hours(lived.plan.channel_down[1])
        after = [one for one in lived.verdict.messages if one.channel == "platform" and one.at >= back]
        assert {one.subject.partition("_")[0] for one in after[:4]} == {"ledger", "load", "sms"}
        assert [(one.what, one.subject) for one in after[:4] if one.what == "resolved"] == [("resolved", "sms")]
        assert after[3].what == "resolved"

    def test_goes_to_the_owning_team(self, lived):
        finance = {one.subject for one in lived.verdict.messages if one.channel == "finance"}
        assert finance == {"report", "settings"}


class TestJudge:
    """The judge must detect wrong messages, or the figures above prove nothing."""

    AT = second_week.MONDAY

    def judged(self, *messages):
        cause = incidents.Cause(
            name="service down",
            subjects=frozenset({"bank"}),
            channel="platform",
            begins=self.AT,
            ends=self.AT + incidents.hours(2),
            needs=(("P2", self.AT + incidents.hours(1)),),
            resolved_by=self.AT + incidents.hours(3),
        )
        made = [
            incidents.Message(
                at=self.AT + incidents.hours(hour),
                channel="platform",
                what=what,
                severity=severity,
                subject=subject,
                condition="",
                headline="",
                alert_id=alert_id,
            )
            for hour, what, severity, subject, alert_id in messages
        ]
        return incidents.judge([cause], made, acknowledged={}, until=self.AT + incidents.hours(9))

    def test_accepts_one_alert_that_opens_and_ends(self):
        verdict = self.judged((0.5, "opened", "P2", "bank", 1), (2.5, "resolved", "P2", "bank", 1))
        assert (verdict.missed, verdict.not_needed, verdict.false_all_clears) == ([], [], [])
        assert verdict.incidents == verdict.causes

    def test_counts_false_all_clear_second_alert_and_miss(self):
        verdict = self.judged(
            (0.5, "opened", "P3", "bank", 1),
            (1.0, "resolved", "P3", "bank", 1),
            (1.5, "opened", "P3", "bank", 2),
            (1.6, "opened", "P3", "crm", 3),
        )
        assert len(verdict.false_all_clears) == 1
        assert len(verdict.not_needed) == 2
        assert verdict.incidents == 3
        assert len(verdict.missed) == 2
