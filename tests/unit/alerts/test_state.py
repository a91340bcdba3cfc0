"""What becomes of an alert, step by step and in any order."""

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redrive.alerts import state
from redrive.alerts.picture import Judgement
from redrive.alerts.settings import AlertSettings
from redrive.notices import AlertStatus, Facts, Finding, Subject, Urgency, What

NOON = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
SETTINGS = AlertSettings()
P1, P2, P3 = Urgency.P1, Urgency.P2, Urgency.P3
RUN = UUID(int=7)


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def finding(evidence="run:vendor:failed", urgency=P2, *, key="run:vendor", **options):
    options.setdefault("condition", "retries_exhausted")
    options.setdefault("subject", Subject(kind="pipeline", name="vendor"))
    options.setdefault("title", f"{evidence} says {urgency}")
    return Finding(key=key, evidence=evidence, urgency=urgency, **options)


class Books:
    """Alerts as a store would keep them, and everything that was told."""

    def __init__(self, settings=SETTINGS):
        self.settings = settings
        self.cases, self.over, self.told = {}, [], []
        self._serial = 0

    def judge(self, *findings, judged=(), at=0.0):
        judgement = Judgement(findings=findings, judged=frozenset({*judged, *(one.evidence for one in findings)}))
        now = after(at)
        changes = state.judged(self.cases, judgement, now, self.settings, is_known=self._is_known)
        return self._take(changes, now)

    def pass_time(self, at):
        now = after(at)
        return self._take({key: state.passed(case, now, self.settings) for key, case in self.cases.items()}, now)

    def decide(self, key, step, at, **options):
        now = after(at)
        return self._take({key: step(self.cases[key], now, **options)}, now)

    def _is_known(self, found):
        same = (found.key, found.condition, found.facts.run_id)
        return found.key not in self.cases and any(
            (one.key, one.condition, one.facts.run_id) == same for one in self.over
        )

    def _take(self, changes, now):
        told = []
        for key, change in changes.items():
            case = change.case
            self.cases.pop(key, None)
            if case is None:
                continue
            if case.alert.id == state.UNTOLD:
                self._serial += 1
                case = replace(case, alert=replace(case.alert, id=self._serial))
            if case.alert.is_over:
                self.over.append(case.alert)
            else:
                self.cases[key] = case
            told += [(case.alert.id, what, now) for what in change.told]
        self.told += told
        return [what for _, what, _ in told]

    def alert(self, key="run:vendor"):
        return self.cases[key].alert


@pytest.fixture
def books():
    return Books()


# ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_need_not_persist_is_told_at_once_and_only_once(books):
    assert books.judge(finding()) == [What.OPENED]
    assert books.judge(finding(), at=60) == []
    assert books.alert().seen == 2
    assert books.alert().last_seen == after(60)


def test_an_event_that_must_persist_is_told_when_it_has_held_for_that_long(books):
    assert books.judge(finding(persist=600)) == []
    assert books.alert().status is AlertStatus.WAITING
    assert books.pass_time(599) == []
    assert books.pass_time(600) == [What.OPENED]
    assert books.alert().opened_at == after(600)


def test_persistence_counts_from_when_it_began_where_that_is_known(books):
    assert books.judge(finding(persist=600, since=after(-500)), at=0) == []
    assert books.pass_time(100) == [What.OPENED]
    assert books.alert().since == after(-500)


def test_a_level_is_told_when_it_is_measured_again_after_long_enough_and_not_by_the_clock_alone(books):
    level = finding("level:slot:s", P1, persist=300)
    assert books.judge(level) == []
    assert books.pass_time(5_000) == [], "nobody knows whether it still holds"
    assert books.judge(level, at=5_030) == [What.OPENED]


def test_what_goes_away_before_anybody_is_told_is_forgotten(books):
    books.judge(finding("level:slot:s", P1, persist=300))
    assert books.judge(judged=["level:slot:*"], at=299) == []
    assert books.cases == {}
    assert books.over == []


def test_a_new_witness_that_need_not_wait_opens_what_waits(books):
    books.judge(finding("run:vendor:failed", persist=600, key="service:bank:down"))
    level = finding("level:down:bank", key="service:bank:down", since=after(-300))
    assert books.judge(level, at=30) == [What.OPENED]
    assert books.alert("service:bank:down").evidence == {"run:vendor:failed", "level:down:bank"}


# ── urgency ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_becomes_more_urgent_is_told_at_once_even_where_somebody_is_at_it(books):
    books.judge(finding(urgency=P3))
    books.decide("run:vendor", state.acknowledged, 10, by="ann", note=None)
    assert books.judge(finding(urgency=P1), at=20) == [What.ESCALATED]
    assert (books.alert().status, books.alert().urgency) == (AlertStatus.OPEN, P1)
    assert books.alert().acknowledged_by is None


def test_what_becomes_less_urgent_changes_without_a_word_and_may_not_flap_back_into_a_message(books):
    books.judge(finding(urgency=P1))
    assert books.judge(finding(urgency=P3), at=10) == []
    assert books.alert().urgency is P3
    assert books.judge(finding(urgency=P1), at=20) == []
    assert books.alert().urgency is P1
    assert books.pass_time(3_600) == [What.REPEATED]


def test_the_most_urgent_witness_is_believed_until_it_takes_back_what_it_said(books):
    books.judge(finding("run:vendor:gate", P1, key="letters:vendor", title="7 % rejected"))
    books.judge(finding("level:pending:vendor", P3, key="letters:vendor", title="120 pending"), at=30)
    assert books.alert("letters:vendor").title == "7 % rejected"
    assert books.judge(judged=["run:vendor:gate"], at=60) == []
    assert books.alert("letters:vendor").title == "120 pending"
    assert books.alert("letters:vendor").urgency is P3


def test_of_two_equally_urgent_findings_the_newest_is_shown_and_all_who_suffer_are_named(books):
    down = "service:bank:down"
    for number, name in enumerate(["vendor", "orders"]):
        books.judge(
            finding(f"run:{name}:failed", key=down, title=name, facts=Facts(affected=(name,), error=name)), at=number
        )
    alert = books.alert(down)
    assert (alert.title, alert.facts.error) == ("orders", "orders")
    assert alert.facts.affected == ("orders", "vendor")
    books.judge(judged=["run:orders:*"], at=9)
    assert books.alert(down).facts.affected == ("vendor",)


def test_two_findings_of_one_cause_in_one_judgement_are_one_message_as_urgent_as_the_worst(books):
    assert books.judge(finding("a", P3), finding("b", P1)) == [What.OPENED]
    assert books.alert().urgency is P1


def test_an_urgent_witness_that_has_not_held_long_enough_does_not_make_the_alert_urgent_yet(books):
    assert books.judge(finding("a", P3)) == [What.OPENED]
    assert books.judge(finding("b", P1, persist=60), at=1) == []
    assert books.alert().urgency is P3
    assert books.pass_time(61) == [What.ESCALATED]


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_alert_is_over_when_nobody_speaks_for_it_any_more(books):
    books.judge(finding("run:a:failed", key="service:bank:down"), finding("run:b:failed", key="service:bank:down"))
    assert books.judge(judged=["run:a:failed"], at=10) == []
    assert books.judge(judged=["run:b:failed"], at=20) == [What.RESOLVED]
    assert books.over[-1].resolved_at == after(20)


def test_a_level_must_be_gone_for_a_while_and_one_that_comes_back_meanwhile_was_never_gone(books):
    level = finding("level:down:bank")
    books.judge(level)
    assert books.judge(judged=["level:down:*"], at=100) == []
    assert books.alert().gone_since == after(100)
    assert books.judge(level, at=200) == []
    assert books.pass_time(450) == []
    assert books.judge(judged=["level:down:*"], at=500) == []
    assert books.pass_time(799) == []
    assert books.pass_time(800) == [What.RESOLVED]


def test_what_is_going_away_is_not_repeated(books):
    books.judge(finding("level:down:bank", P1))
    books.judge(judged=["level:down:*"], at=3_500)
    assert books.pass_time(3_700) == []


def test_what_was_not_looked_at_stays_as_it_is(books):
    books.judge(finding("level:slot:a"))
    assert books.judge(judged=["level:slot:b", "run:*"], at=9_999) == []
    assert books.alert().gone_since is None


def test_a_witness_that_blames_something_else_now_leaves_the_first_alert(books):
    books.judge(finding("run:vendor:failed", key="service:bank:down"))
    told = books.judge(finding("run:vendor:failed", P1, key="service:bank:auth", condition="permanent_error"), at=9)
    assert Counter(told) == {What.OPENED: 1, What.RESOLVED: 1}
    assert set(books.cases) == {"service:bank:auth"}


def test_what_is_found_again_after_it_was_over_is_a_new_alert(books):
    books.judge(finding())
    books.judge(judged=["run:vendor:failed"], at=10)
    assert books.judge(finding(), at=20) == [What.OPENED]
    assert books.alert().id != books.over[0].id


def test_a_person_may_close_it_and_what_nobody_was_told_of_is_closed_without_a_word(books):
    books.judge(finding())
    assert books.decide("run:vendor", state.closed, 5, by="ann", note="mended") == [What.RESOLVED]
    assert books.over[0].resolution == "closed by ann: mended"
    books.judge(finding(persist=60), at=10)
    assert books.decide("run:vendor", state.closed, 15, by="ann", note="known") == []


# ── repeats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("urgency", "every"), [(P1, 3_600), (P2, 14_400), (P3, 86_400)])
def test_what_stays_open_is_repeated_as_its_urgency_demands_until_somebody_is_at_it(books, urgency, every):
    books.judge(finding(urgency=urgency))
    assert books.pass_time(every - 1) == []
    assert books.pass_time(every) == [What.REPEATED]
    assert books.pass_time(2 * every - 1) == []
    assert books.decide("run:vendor", state.acknowledged, 2 * every, by="ann", note="on it") == [What.ACKNOWLEDGED]
    assert books.pass_time(5 * every) == []
    assert books.decide("run:vendor", state.acknowledged, 5 * every, by="bob", note=None) == []
    assert (books.alert().acknowledged_by, books.alert().note) == ("bob", "on it")


def test_what_is_never_to_be_repeated_is_not():
    books = Books(AlertSettings(repeat={P1: None}))
    books.judge(finding(urgency=P1))
    assert books.pass_time(1e7) == []


# ── runs that recover, and what is over when it is told ───────────────────────────────────────────────────────────────

COMPLETE = ("run:vendor:failed", "level:lost:vendor", "recovered:00000000-0000-0000-0000-000000000007")


def recovered(run_id=RUN):
    return finding(
        f"recovered:{run_id}",
        P3,
        key=f"recovered:{run_id}",
        condition="recovered",
        title="vendor is complete after it had failed once",
        momentary=True,
        facts=Facts(run_id=run_id),
    )


@pytest.mark.parametrize("evidence", ["run:vendor:failed", "level:lost:vendor"])
@pytest.mark.parametrize("said_by_the_rule", [True, False])
def test_a_run_that_recovers_before_anybody_was_told_is_one_p3(books, evidence, said_by_the_rule):
    books.judge(finding(evidence, persist=600, facts=Facts(run_id=RUN, error="bank is down")))
    assert books.judge(*([recovered()] if said_by_the_rule else []), judged=COMPLETE, at=300) == [What.OPENED]
    assert books.cases == {}
    (alert,) = books.over
    assert (alert.condition, alert.urgency, alert.subject.name) == ("recovered", P3, "vendor")
    assert books.judge(*([recovered()] if said_by_the_rule else []), judged=COMPLETE, at=301) == []


def test_a_run_that_recovers_after_people_were_told_is_resolved_and_nothing_else(books):
    books.judge(finding(facts=Facts(run_id=RUN)))
    assert books.judge(recovered(), judged=COMPLETE, at=300) == [What.RESOLVED]


def test_one_of_several_runs_that_suffered_from_an_open_outage_recovers_without_a_word(books):
    for name in ("vendor", "orders"):
        books.judge(finding(f"run:{name}:failed", key="service:bank:down"))
    assert books.judge(recovered(), judged=COMPLETE, at=300) == []


def test_a_waiting_failure_that_was_followed_by_a_gate_abort_has_not_recovered(books):
    books.judge(finding(persist=600))
    abort = finding("run:vendor:gate", P1, key="letters:vendor", condition="gate_abort")
    assert books.judge(abort, judged=COMPLETE, at=10) == [What.OPENED]
    assert set(books.cases) == {"letters:vendor"}


def test_what_is_over_when_it_is_found_is_told_once(books):
    late = finding("sla:vendor", P1, key="sla:vendor", condition="sla_missed", momentary=True)
    assert books.judge(late) == [What.OPENED]
    assert books.over[0].is_over
    assert books.judge(late, at=1) == []


def test_what_is_over_when_it_is_found_closes_what_was_open(books):
    books.judge(finding("sla:vendor", P1, key="sla:vendor", condition="sla_missed"))
    late = finding("sla:vendor", P1, key="sla:vendor", condition="sla_missed", momentary=True, title="an hour late")
    assert books.judge(late, at=1) == [What.RESOLVED]
    assert books.over[0].resolution == "an hour late"
    assert books.judge(late, at=2) == []


# ── anything, in any order ────────────────────────────────────────────────────────────────────────────────────────────

KEYS = ("run:a", "service:bank:down", "letters:a")
EVIDENCE = ("run:a:failed", "run:b:failed", "run:a:gate", "level:down:bank", "level:lost:a", "sla:a")
witnesses = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(EVIDENCE),
    st.sampled_from(list(Urgency)),
    st.sampled_from([0.0, 60.0, 600.0]),
    st.sampled_from([None, 0, 100, 1_000]),
)


class Life(RuleBasedStateMachine):
    """Findings, withdrawals, people and time, in any order; whatever happens, people can trust what they are told."""

    @initialize()
    def begin(self):
        self.books, self.now = Books(), 0.0

    def judge(self, drawn, judged):
        found = {}
        for key, evidence, urgency, persist, ago in drawn:
            since = None if ago is None else after(self.now - ago)
            found[key, evidence] = finding(evidence, urgency, key=key, persist=persist, since=since)
        return self.books.judge(*found.values(), judged=judged, at=self.now)

    @rule(
        drawn=st.lists(witnesses, max_size=4),
        judged=st.lists(st.sampled_from([*EVIDENCE, "run:a:*", "level:*"]), max_size=4),
    )
    def look(self, drawn, judged):
        self.judge(drawn, judged)
        before = {key: replace(case.alert, seen=0) for key, case in self.books.cases.items()}
        assert self.judge(drawn, judged) == [], "the same judgement once more tells nobody anything"
        assert {key: replace(case.alert, seen=0) for key, case in self.books.cases.items()} == before

    @rule(seconds=st.sampled_from([1, 59, 60, 301, 3_600, 50_000]))
    def wait(self, seconds):
        self.now += seconds
        self.books.pass_time(self.now)
        assert self.books.pass_time(self.now) == []
        for case in self.books.cases.values():
            if case.alert.status is AlertStatus.WAITING:
                assert not any(one.has_held(after(self.now)) for one in case.witnesses)

    @rule(key=st.sampled_from(KEYS), closes=st.booleans())
    def person(self, key, closes):
        case = self.books.cases.get(key)
        if case is not None and (closes or case.is_told):
            step = state.closed if closes else state.acknowledged
            self.books.decide(key, step, self.now, by="ann", note="x")

    @invariant()
    def every_alert_tells_a_story_in_order(self):
        stories = defaultdict(list)
        for alert_id, what, at in self.books.told:
            stories[alert_id].append((what, at))
        open_ids = {case.alert.id for case in self.books.cases.values()}
        assert len(open_ids) == len(self.books.cases)
        for alert_id, story in stories.items():
            said = [what for what, _ in story]
            assert said[0] is What.OPENED
            assert said.count(What.OPENED) == 1
            assert said.count(What.ESCALATED) <= 2
            assert (What.RESOLVED in said[:-1]) is False
            if said[-1] is What.RESOLVED:
                assert alert_id not in open_ids
            loud = [at for what, at in story if what is not What.RESOLVED and what is not What.ACKNOWLEDGED]
            for what, at in story:
                if what is What.REPEATED:
                    last = max(one for one in loud if one < at)
                    assert at - last >= timedelta(seconds=min(SETTINGS.repeat.values()))

    @invariant()
    def an_alert_is_what_its_witnesses_say(self):
        told = {alert_id for alert_id, _, _ in self.books.told}
        for key, case in self.books.cases.items():
            alert = case.alert
            assert (alert.key, alert.is_over) == (key, False)
            assert (alert.id in told) is (alert.status is not AlertStatus.WAITING)
            assert alert.evidence == {one.evidence for one in case.witnesses}
            assert bool(case.witnesses) is (alert.gone_since is None)
            held = [one for one in case.witnesses if one.has_held(after(self.now))] or case.witnesses
            if held:
                assert alert.urgency is min(one.finding.urgency for one in held)

    @rule()
    def heal(self):
        """All is well again: everything that was opened is resolved, once."""
        self.books.judge(judged=EVIDENCE, at=self.now)
        self.now += SETTINGS.persist
        self.books.pass_time(self.now)
        assert self.books.cases == {}
        momentary = {alert.id for alert in self.books.over if alert.condition == "recovered"}
        said = Counter((alert_id, what) for alert_id, what, _ in self.books.told)
        for alert_id in {alert_id for alert_id, _, _ in self.books.told} - momentary:
            assert said[alert_id, What.OPENED] == said[alert_id, What.RESOLVED] == 1


TestLife = Life.TestCase
TestLife.settings = hypothesis_settings(stateful_step_count=30)
