"""Hours and days of one service on a simulated clock: which messages an on-call gets."""

import logging
import math
from itertools import pairwise

import pytest

from redrive.model.alerts import Severity, What
from tests.support.alert_snapshots import DAY, HOUR, MINUTE
from tests.support.alert_world import World

pytestmark = pytest.mark.slow

SETTLED = HOUR + 10 * MINUTE
"""After the last failure that anybody saw: an hour without one, five minutes of any level, and the looks between."""
SETTLED_FLAP = SETTLED + HOUR
"""The same for what fails on and off and is seldom called: it may hide for longer than an hour."""


def seeds(*few):
    """Return 1 to 20; all but a few are for `make chaos`."""
    return [seed if seed in few else pytest.param(seed, marks=pytest.mark.chaos) for seed in range(1, 21)]


@pytest.fixture(autouse=True)
def _no_log_of_attempts(caplog):
    caplog.set_level(logging.CRITICAL, "redrive")


class TestFlapping:
    """A service that is up and down in turn for four hours, as a pipeline finds it that runs every ten minutes."""

    @pytest.mark.parametrize(
        ("period", "shift"),
        [(2, 0.0), (2, 0.4), (4, 0.0), (4, 0.2), (7, 0.0), (11, 0.07), (15, 0.0), (30, 0.0), (60, 0.0), (60, 0.4)],
    )
    def test_is_one_alert_and_at_most_one_p3(self, period, shift):
        self.check_pipeline(period, shift, seed=7)

    @pytest.mark.chaos
    @pytest.mark.parametrize("period", range(2, 61))
    def test_of_any_period_is_one_alert_and_at_most_one_p3(self, period):
        """Each period with a seed and a shift of its own; all twenty seeds come. The first run meets a failure."""
        self.check_pipeline(period, (period * 0.37) % 0.5, seed=period % 20 + 1)

    def check_pipeline(self, period, shift, *, seed):
        """At most three messages: one P2 that opens, its end, and a P3 for a first run that had recovered before."""
        world = World(lambda elapsed: self.is_down(elapsed, period, shift), seed=seed)
        world.pipeline()
        world.every(MINUTE / 2, world.look)
        world.go(7 * HOUR)
        lasting = [one for one in world.incidents if one.condition != "recovered"]
        assert [(one.what, one.urgency) for one in lasting] == [
            (What.OPENED, Severity.P2),
            (What.RESOLVED, Severity.P2),
        ]
        assert len([one for one in world.incidents if one.condition == "recovered"]) <= 1
        # A pipeline every 10 minutes may meet a period of 11 once, and then not for more than an hour.
        begins = next(earlier for earlier, later in pairwise(world.failed_runs) if later - earlier <= HOUR)
        assert lasting[0].at <= begins + HOUR
        assert HOUR <= lasting[-1].at - world.failed_runs[-1] <= SETTLED_FLAP

    @pytest.mark.parametrize("period", [2, 7, 60])
    def test_is_one_alert_for_a_constantly_called_service(self, period):
        self.check_calls(period, seed=7)

    @pytest.mark.chaos
    @pytest.mark.parametrize("period", range(2, 61))
    def test_of_any_period_is_one_alert_for_constant_calls(self, period):
        self.check_calls(period, seed=period % 20 + 1)

    def check_calls(self, period, *, seed):
        world = World(lambda elapsed: self.is_down(elapsed, period, 0.2, until=2 * HOUR), seed=seed)
        world.traffic(240)
        world.every(MINUTE / 2, world.look)
        world.go(4 * HOUR)
        assert [one.what for one in world.sent if one.what is not What.ESCALATED] == [What.OPENED, What.RESOLVED]
        assert world.sent[0].at <= 15 * MINUTE
        assert world.sent[-1].at >= world.failed_calls[-1] + HOUR

    @staticmethod
    def is_down(elapsed, period, shift, *, until=4 * HOUR):
        return float(elapsed < until and (elapsed / MINUTE / period + shift) % 1 < 0.5)


class TestOutage:
    @pytest.mark.parametrize("minutes", [20, 90])
    def test_single_outage_is_over_after_a_good_hour(self, minutes):
        begins, ends = HOUR, HOUR + minutes * MINUTE
        world = World(lambda elapsed: float(begins <= elapsed < ends))
        world.pipeline()
        world.every(MINUTE / 2, world.look)
        world.go(ends + 3 * HOUR)
        opened, resolved = (one for one in world.incidents if one.condition != "recovered")
        assert (opened.what, resolved.what) == (What.OPENED, What.RESOLVED)
        assert HOUR <= resolved.at - world.failed_runs[-1] <= SETTLED


class TestDegradation:
    @pytest.mark.parametrize("seed", seeds(7, 8))
    def test_degradation_over_days_is_one_open_alert(self, seed):
        begins, ends = DAY, 3 * DAY + 12 * HOUR
        world = World(lambda elapsed: 0.3 if begins <= elapsed < ends else 0.01, seed=seed)
        world.traffic(120)
        world.every(15 * MINUTE, world.look)
        world.go(ends + 3 * HOUR)
        opened, resolved = world.incidents
        assert (opened.what, resolved.what) == (What.OPENED, What.RESOLVED)
        assert begins < opened.at <= begins + 1.5 * HOUR
        assert ends < resolved.at <= ends + 2 * HOUR
        loud = [one for one in world.sent if one.what in (What.OPENED, What.ESCALATED) and one.urgency is Severity.P2]
        assert len(loud) == 1, "calls are lost, and that is said once"

    @pytest.mark.parametrize("seed", seeds(1, 4))
    def test_growing_degradation_is_reported_before_calls_fail(self, seed):
        begins = DAY
        world = World(lambda elapsed: 0.01 + 0.34 * max(0.0, (elapsed - begins) / (12 * HOUR)), seed=seed)
        world.traffic(300)
        world.every(5 * MINUTE, world.look)
        world.go(begins + 12 * HOUR)
        (opened,) = world.incidents
        assert (opened.condition, opened.urgency) == ("retries_rising", Severity.P3)
        # With seed 15 every attempt of one call fails while 7 % of attempts do: hours before the first with most seeds.
        assert begins < opened.at <= world.failed_calls[0] - (15 if seed == 15 else 20) * MINUTE
        assert [one.urgency for one in world.sent if one.what is What.ESCALATED] == [Severity.P2]


class TestQuietService:
    @pytest.mark.parametrize("seed", seeds(7))
    def test_with_a_daily_pattern_is_silent_for_two_weeks(self, seed):
        """One attempt in a hundred fails, at night and at noon; a retry helps."""
        world = World(lambda elapsed: 0.01, seed=seed)
        world.traffic(lambda elapsed: 80 * (1 + 0.9 * math.sin(2 * math.pi * (elapsed / DAY))))
        world.every(15 * MINUTE, world.look)
        world.go(14 * DAY)
        assert world.sent == []
