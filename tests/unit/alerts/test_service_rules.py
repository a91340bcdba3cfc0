"""Findings about services: an outage, a rejected credential, failing calls, rising retries."""

from datetime import timedelta

import pytest

from redrive.alerts.config.settings import AlertSettings, Thresholds
from redrive.alerts.facts.snapshot import Window
from redrive.model.alerts import Severity, Subject
from tests.support.alert_snapshots import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    a_run,
    a_service,
    conditions,
    levels,
    looked,
    minutes,
    the_one,
    with_thresholds,
)


def of_service(settings=None, now=NOW, **told):
    return looked(levels(now=now, services=(a_service(**told),)), settings)


def failing(first, last=1, *, attempts=20):
    """Every minute from `first` ago to `last` ago has failed."""
    return minutes(*((ago, attempts, attempts) for ago in range(first, last - 1, -1)))


# ── down ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("bad", "now", "found"),
    [
        (failing(4), NOW, False),
        (failing(5), NOW, False),  # exactly five minutes are not yet more
        (failing(5, 0), NOW, False),  # the sixth begins at this very moment
        (failing(5, 0), NOW + SECOND, True),
        (failing(6), NOW, True),
    ],
)
def test_service_is_down_after_failing_over_five_minutes(bad, now, found):
    judgement = of_service(minutes=bad, now=now)
    assert conditions(judgement) == (["service_down"] if found else [])
    assert judgement.covers("level:down:shipfast")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("service:shipfast:down", "level:down:shipfast")
        assert (finding.urgency, finding.persist) == (Severity.P2, 0.0)  # the five minutes are in the rule
        assert finding.since == bad[0].at


@pytest.mark.parametrize(("seconds", "found"), [(359, True), (360, False), (361, False)])
def test_down_duration_is_a_setting(seconds, found):
    assert bool(of_service(with_thresholds(down_seconds=seconds), minutes=failing(6)).findings) is found


@pytest.mark.parametrize(
    ("attempts", "faults", "share", "found"),
    [
        (100, 49, 0.5, False),
        (100, 50, 0.5, True),
        (100, 51, 0.5, True),
        (10, 3, 0.3, True),
        (10, 3, 0.31, False),
        (10, 0, 0.5, False),
        (10, 0, 0.0, False),
        (0, 0, 0.0, False),
    ],
)
def test_minute_counts_when_half_of_its_attempts_failed(attempts, faults, share, found):
    told = minutes(*((ago, attempts, faults) for ago in range(10, 0, -1)))
    assert bool(of_service(with_thresholds(down_share=share), minutes=told).findings) is found


def test_minute_of_a_clock_that_is_ahead_is_not_known_yet():
    well, ahead = minutes((1, 20, 0)), minutes(*((-ago, 20, 20) for ago in range(1, 9)))
    assert of_service(minutes=(*failing(4, 2), *well, *ahead)).findings == ()
    assert the_one(of_service(minutes=(*failing(9), *minutes((-1, 20, 0))))).condition == "service_down"


@pytest.mark.parametrize(("faults", "found"), [(4, False), (5, True), (6, True)])
def test_few_calls_recovered_by_retry_are_no_outage(faults, found):
    # One call every ten minutes, whose first attempt fails and whose second one does not.
    told = minutes(*((10 * ago, 2, 1) for ago in range(faults, 0, -1)))
    assert bool(of_service(minutes=told).findings) is found


@pytest.mark.parametrize(("since", "found"), [(1, True), (60, True), (61, False)])
def test_outage_is_over_after_an_hour_without_failures(since, found):
    told = (*failing(since + 9, since + 1), *minutes(*((ago, 20, 0) for ago in range(since, 0, -1))))
    judgement = of_service(minutes=told)
    assert bool(judgement.findings) is found
    for finding in judgement.findings:
        assert finding.title.startswith("shipfast had failed for 9 min since ")
        assert finding.title.endswith("180 of 180 attempts; it answers again")


def test_hour_without_failures_is_a_setting():
    told = (*failing(20, 8), *minutes(*((ago, 20, 0) for ago in range(7, 0, -1))))
    assert of_service(with_thresholds(flap_seconds=420.0), minutes=told).findings
    assert of_service(with_thresholds(flap_seconds=419.0), minutes=told).findings == ()


class TestFlapping:
    """Minutes that fail in turn with minutes that do not."""

    @staticmethod
    def turns(times, *, good=1, attempts=20, faults=20):
        """Return several failing minutes with good minutes between; the last was a minute ago."""
        first = 1 + (times - 1) * (good + 1)
        return minutes(*((ago, attempts, faults if (ago - 1) % (good + 1) == 0 else 0) for ago in range(first, 0, -1)))

    @pytest.mark.parametrize(("times", "found"), [(1, False), (2, False), (3, True), (9, True)])
    def test_is_an_outage_the_third_time(self, times, found):
        assert bool(of_service(minutes=self.turns(times)).findings) is found

    def test_outage_shows_number_of_failures(self):
        finding = the_one(of_service(minutes=self.turns(9)))
        assert finding.title == (
            "shipfast fails on and off: 9 times since 11:43 UTC, last at 12:00 UTC: 180 of 340 attempts"
        )
        assert finding.facts.measured["times"] == 9

    @pytest.mark.parametrize(("good", "found"), [(4, True), (5, False)])
    def test_takes_a_quarter_of_the_minutes(self, good, found):
        """Three failing minutes of eleven, or of thirteen."""
        assert bool(of_service(minutes=self.turns(3, good=good)).findings) is found

    @pytest.mark.parametrize(("times", "found"), [(4, False), (3, True)])
    def test_number_of_failures_is_a_setting(self, times, found):
        assert bool(of_service(with_thresholds(flap_times=times), minutes=self.turns(3)).findings) is found

    def test_recovered_attempts_do_not_count(self):
        """One call a minute, each third of which needs a second attempt."""
        told = minutes(*((ago, 2 if ago % 3 == 0 else 1, int(ago % 3 == 0)) for ago in range(60, 0, -1)))
        assert of_service(minutes=told).findings == ()

    def test_stays_reported_after_one_more_failure(self):
        told = minutes(*((ago + 40, 20, 20 if ago % 2 else 0) for ago in range(9, 0, -1)))
        good = minutes(*((ago, 20, 0) for ago in range(40, 1, -1)))
        assert conditions(of_service(minutes=(*told, *good, *failing(1)))) == ["service_down"]


def test_minutes_without_attempts_neither_break_nor_prove_it():
    # The circuit is open: one probe every two minutes, and each of them fails.
    probes = minutes(*((ago, 1, 1) for ago in range(7, 0, -2)))
    down = of_service(minutes=(*failing(12, 9), *probes))
    assert the_one(down).title == "shipfast has failed for 12 min: 84 of 84 attempts since 11:48 UTC"
    # It failed for two minutes and was not called for half an hour: whether it is still down is unknown.
    assert of_service(minutes=failing(32, 31)).findings == ()


@pytest.mark.parametrize(("since", "found"), [(timedelta(minutes=59), True), (HOUR, True), (HOUR + SECOND, False)])
def test_service_is_unknown_after_an_hour_without_calls(since, found):
    judgement = of_service(minutes=failing(10), now=NOW + since)
    assert bool(judgement.findings) is found
    assert judgement.covers("level:down:shipfast")


@pytest.mark.parametrize(("gap", "found"), [(60, True), (61, False)])
def test_hour_without_calls_makes_two_outages(gap, found):
    told = (*failing(gap + 4, gap + 2), *failing(1))
    assert bool(of_service(minutes=told).findings) is found


def test_outage_is_reported_with_figures_and_affected_pipelines():
    told = (*failing(7, 2, attempts=35), *minutes((1, 4, 2)))
    suffering = a_run("running", error_service="shipfast")
    snapshot = levels(services=(a_service(minutes=told, used_by=("orders",)),), running=(suffering,))
    finding = the_one(looked(snapshot))
    assert finding.title == "shipfast has failed for 7 min: 212 of 214 attempts since 11:53 UTC"
    assert finding.subject == Subject(kind="service", name="shipfast")
    assert finding.facts.affected == ("orders", "vendor")
    assert finding.facts.measured == {"failing for": 420.0, "threshold": 300.0, "times": 1}
    assert finding.facts.commands == ("redrive services show shipfast",)
    assert "probes" in finding.facts.next_step


def test_41_service_with_recovered_failures_is_no_alert():
    told = minutes(*((ago, 200, 3) for ago in range(60, 0, -1)))
    assert of_service(minutes=told, successes=11_820, retries=180, successes_before=200_000).findings == ()


# ── refused ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("refused", "success", "found"),
    [
        (None, None, False),
        (None, NOW, False),
        (NOW - HOUR, None, True),
        (NOW - HOUR, NOW - 2 * HOUR, True),
        (NOW - HOUR, NOW - HOUR - SECOND, True),
        (NOW - HOUR, NOW - HOUR + SECOND, False),
        (NOW - 15 * MINUTE + SECOND, NOW, True),  # another process may have another credential
        (NOW - 15 * MINUTE, NOW, False),
        (NOW + 5 * MINUTE, NOW - MINUTE, True),  # an older version's quarter, which is not over
        (NOW - DAY + SECOND, None, True),
        (NOW - DAY, None, False),
    ],
)
def test_rejected_credential_is_a_p1_until_success_or_a_day(refused, success, found):
    judgement = of_service(last_auth_failure=refused, last_success=success)
    assert conditions(judgement) == (["auth_refused"] if found else [])
    assert judgement.covers("level:auth:shipfast")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("service:shipfast:auth", "level:auth:shipfast")
        assert (finding.urgency, finding.persist) == (Severity.P1, 0.0)


@pytest.mark.parametrize(("refusals", "found"), [(0, False), (1, True), (2, True)])
def test_one_rejection_is_enough(refusals, found):
    assert bool(of_service(failed_auth=refusals).findings) is found


@pytest.mark.parametrize(("silence", "found"), [(3_600.0, False), (3_601.0, True)])
def test_rejection_duration_is_a_setting(silence, found):
    told = of_service(with_thresholds(auth_silence=silence), last_auth_failure=NOW - HOUR)
    assert bool(told.findings) is found


def test_rejection_is_reported_with_count_and_time():
    finding = the_one(of_service(failed_auth=14, last_auth_failure=NOW - 15 * MINUTE))
    assert finding.title == "shipfast refused its credential 14 times within the hour, last at 11:45 UTC"
    assert "put a valid credential in place" in finding.facts.next_step


# ── 4xx ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("calls", "limit", "found"),
    [(0, 1, False), (1, 1, True), (2, 1, True), (99, 100, False), (100, 100, True), (101, 100, True)],
)
def test_any_call_that_ended_in_a_4xx_is_a_p3(calls, limit, found):
    judgement = of_service(with_thresholds(client_errors=limit), failed_4xx=calls)
    assert conditions(judgement) == (["client_errors"] if found else [])
    assert judgement.covers("level:4xx:shipfast")
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("service:shipfast:4xx", "level:4xx:shipfast")
        assert (finding.urgency, finding.persist) == (Severity.P3, 0.0)
        assert finding.title.startswith(f"shipfast answered {calls} call")


def test_missing_resources_are_routine_where_others_exist():
    assert conditions(of_service(failed_404=7, successes=1)) == []
    assert conditions(of_service(failed_404=7, successes=0)) == ["client_errors"]


def test_three_calls_in_a_row_with_a_5xx_are_a_p3():
    judgement = of_service(streaks_5xx=1)
    assert conditions(judgement) == ["server_errors"]
    assert judgement.covers("level:5xx:shipfast")
    assert conditions(of_service(with_thresholds(server_errors=2), streaks_5xx=1)) == []


# ── retries ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("told", "thresholds", "found"),
    [
        # Half as many again, where that is more than chance: 10,000 successes, of which 2,000 retries are usual.
        ({"retries": 3_000}, {}, False),
        ({"retries": 3_001}, {}, True),
        ({"retries": 4_000}, {"retries_rise": 2.0}, False),
        ({"retries": 4_001}, {"retries_rise": 2.0}, True),
        # Four standard deviations above the usual, which are few: 10 + 4 × √(10 × (1 + 1/20)) + 4.
        ({"successes": 1_000, "retries": 26, "retries_before": 200}, {"retries_least": 0}, False),
        ({"successes": 1_000, "retries": 27, "retries_before": 200}, {"retries_least": 0}, True),
        ({"successes": 1_000, "retries": 27, "retries_before": 200}, {}, False),
        # Too little to report.
        ({"retries": 299, "retries_before": 0}, {}, False),
        ({"retries": 300, "retries_before": 0}, {}, True),
        # Too few calls to judge, now or before.
        ({"successes": 99, "retries": 99}, {}, False),
        ({"successes": 100, "retries": 99}, {}, True),
        ({"successes": 100, "retries": 99}, {"retries_calls": 101}, False),
        ({"retries": 9_000, "successes_before": 99, "retries_before": 1}, {}, False),
        ({"retries": 9_000, "successes_before": 100, "retries_before": 1}, {}, True),
        ({"successes": 0, "retries": 900}, {}, False),
    ],
)
def test_rise_of_retries_must_exceed_usual_and_chance(told, thresholds, found):
    usual = {"successes": 10_000, "retries": 2_000, "successes_before": 20_000, "retries_before": 4_000}
    judgement = of_service(with_thresholds(**thresholds), **{**usual, **told})
    assert conditions(judgement) == (["retries_rising"] if found else [])
    for finding in judgement.findings:
        assert (finding.key, finding.evidence) == ("service:shipfast:down", "level:retries:shipfast")
        assert (finding.urgency, finding.persist) == (Severity.P3, 300.0)


def test_retries_are_reported_with_the_usual_rate():
    finding = the_one(of_service(successes=1_000, retries=450, successes_before=20_000, retries_before=4_000))
    assert finding.title == "shipfast takes 0.45 retries for a success; 0.20 is usual at this hour"


class TestUsualRetries:
    NOW = (Window(successes=250, retries=25),) * 4
    """A tenth, where one in a hundred was usual."""

    @staticmethod
    def days(*shares, successes=1_000):
        return tuple(Window(successes=successes, retries=round(share * successes)) for share in shares)

    def test_days_that_differ_much_raise_the_limit(self):
        assert conditions(of_service(quarters=self.NOW, usual=self.days(*[0.03] * 7))) == ["retries_rising"]
        assert conditions(of_service(quarters=self.NOW, usual=self.days(*[0.0] * 5, 0.1, 0.11))) == []

    def test_day_with_little_data_does_not_raise_the_limit(self):
        few = self.days(0.3, successes=20)
        assert conditions(of_service(quarters=self.NOW, usual=(*self.days(*[0.01] * 6), *few))) == ["retries_rising"]

    def test_one_bad_quarter_is_not_a_rise(self):
        burst = (*[Window(successes=250, retries=2)] * 3, Window(successes=250, retries=94))
        assert conditions(of_service(quarters=burst, usual=self.days(*[0.01] * 7))) == []

    def test_all_calls_in_one_quarter_are_judged(self):
        nightly = (Window(successes=1_000, retries=100),)
        assert conditions(of_service(quarters=nightly, usual=self.days(*[0.01] * 7))) == ["retries_rising"]

    @pytest.mark.parametrize(
        ("quarters", "usual", "weighed"),
        [
            (NOW, (), False),  # nothing to compare with
            ((Window(successes=60, retries=20),), days(0.01), False),  # too few calls to judge
            ((Window(successes=60, retries=1),), days(0.01), True),
            ((), days(0.01), True),  # it is not called any more
        ],
    )
    def test_unjudged_service_leaves_the_alert_unchanged(self, quarters, usual, weighed):
        judgement = of_service(quarters=quarters, usual=usual)
        assert judgement.findings == ()
        assert judgement.covers("level:retries:shipfast") is weighed


class TestFailingCalls:
    @pytest.mark.parametrize(
        ("told", "thresholds", "found"),
        [
            ({"calls": 1_000, "failed": 49}, {}, False),
            ({"calls": 1_000, "failed": 50}, {}, True),
            ({"calls": 1_000, "failed": 50}, {"calls_failed": 0.06}, False),
            ({"calls": 20, "failed": 9}, {}, False),  # too few to judge
            ({"calls": 20, "failed": 10}, {}, True),
            ({"calls": 20, "failed": 10}, {"calls_failed_least": 11}, False),
            # As many as ever.
            ({"calls": 1_000, "failed": 80, "calls_before": 7_000, "failed_before": 490}, {}, False),
            ({"calls": 1_000, "failed": 200, "calls_before": 7_000, "failed_before": 490}, {}, True),
            ({"calls": 1_000, "failed": 50, "calls_before": 7_000, "failed_before": 0}, {}, True),
        ],
    )
    def test_share_above_the_limit_and_the_usual_is_a_p2(self, told, thresholds, found):
        judgement = of_service(with_thresholds(**thresholds), **told)
        assert conditions(judgement) == (["calls_failing"] if found else [])
        for finding in judgement.findings:
            assert (finding.key, finding.evidence) == ("service:shipfast:down", "level:calls:shipfast")
            assert (finding.urgency, finding.persist) == (Severity.P2, 300.0)

    def test_report_has_the_count(self):
        finding = the_one(of_service(calls=900, failed=65))
        assert finding.title == "shipfast fails 7.2 % of calls: 65 of 900 calls within the hour"

    def test_too_few_calls_leave_the_alert_unchanged(self):
        assert not of_service(calls=20, failed=9).covers("level:calls:shipfast")
        assert of_service(calls=1_000, failed=9).covers("level:calls:shipfast")


RISEN = {"successes": 1_000, "retries": 900, "successes_before": 20_000, "retries_before": 4_000}


@pytest.mark.parametrize(("since", "found"), [(10, ["service_down"]), (74, []), (75, ["retries_rising"])])
def test_retries_of_an_outage_are_reported_as_outage_only(since, found):
    """What the last hour counts reaches back for an hour and a quarter."""
    told = (*failing(since + 10, since + 1), *minutes((since, 20, 0)))
    judgement = of_service(minutes=told, **RISEN)
    assert conditions(judgement) == found
    assert judgement.covers("level:retries:shipfast") is ("retries_rising" in found)


def test_service_that_is_down_has_no_other_alert():
    assert conditions(of_service(minutes=failing(30), **RISEN)) == ["service_down"]


def test_service_is_judged_by_its_own_thresholds():
    bad = minutes(*((ago, 10, 10) for ago in range(1, 11)))
    snapshot = levels(services=(a_service(name="bank", minutes=bad), a_service(name="post", minutes=bad)))
    own = AlertSettings(services={"bank": Thresholds(down_seconds=900.0)})
    assert [one.subject.name for one in looked(snapshot, own).findings] == ["post"]
