"""The lifecycle of alerts under events in any order."""

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import timedelta

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redrive.alerts.lifecycle import state_machine
from redrive.model.alerts import AlertStatus, Severity, What
from tests.support.alert_state import SETTINGS, Books, after, finding

KEYS = ("run:a", "service:bank:down", "letters:a")
EVIDENCE = ("run:a:failed", "run:b:failed", "run:a:gate", "level:down:bank", "level:lost:a", "sla:a")
witnesses = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(EVIDENCE),
    st.sampled_from(list(Severity)),
    st.sampled_from([0.0, 60.0, 600.0]),
    st.sampled_from([None, 0, 100, 1_000]),
)


class Life(RuleBasedStateMachine):
    """Findings, withdrawals, operators and time, in any order; every message is true when it is sent.

    Evidence names one cause at a time, and may change it at any time.
    """

    @initialize()
    def begin(self):
        self.books, self.now = Books(), 0.0
        self.holds = {}
        """The evidence that holds, and since when, whatever it blames."""

    def judge(self, drawn, judged, under):
        found = {}
        for key, evidence, urgency, persist, ago in drawn:
            since = None if ago is None else after(self.now - ago)
            found[evidence] = finding(evidence, urgency, key=key, persist=persist, since=since)
        for evidence in [one for one in self.holds if one in judged or one.startswith(tuple(under))]:
            if evidence not in found:
                del self.holds[evidence]
        for evidence, one in found.items():
            self.holds[evidence] = min(self.holds.get(evidence, after(self.now)), one.since or after(self.now))
        known = {key: case.alert.evidence for key, case in self.books.cases.items() if case.is_notified}
        told = self.books.judge(*found.values(), judged=judged, under=under, at=self.now)
        for key, evidence in known.items():
            if not evidence.isdisjoint(self.holds):
                assert key in self.books.cases, "nobody is told that something is over which still holds"
        return told

    @rule(
        drawn=st.lists(witnesses, max_size=4),
        judged=st.lists(st.sampled_from(EVIDENCE), max_size=4),
        under=st.sampled_from([(), ("run:a:",), ("level:",), ("run:a:", "level:")]),
    )
    def look(self, drawn, judged, under):
        self.judge(drawn, judged, under)
        before = {key: replace(case.alert, seen=0) for key, case in self.books.cases.items()}
        assert self.judge(drawn, judged, under) == [], "the same judgement once more tells nobody anything"
        assert {key: replace(case.alert, seen=0) for key, case in self.books.cases.items()} == before

    @rule(
        evidence=st.sampled_from(EVIDENCE),
        blamed=st.lists(st.sampled_from(KEYS), min_size=2, max_size=6),
        persist=st.sampled_from([0.0, 60.0, 600.0]),
        every=st.sampled_from([1, 59, 301]),
    )
    def blame(self, evidence, blamed, persist, every):
        """Judge the same subject repeatedly with changing causes: that is one alert at most."""
        for key in blamed:
            self.judge([(key, evidence, Severity.P2, persist, None)], [], ())
            self.now += every
            self.books.pass_time(self.now)
        speaks_for = [case for case in self.books.cases.values() if evidence in case.alert.evidence]
        assert len(speaks_for) == 1
        assert speaks_for[0].is_notified or after(self.now - every) - self.holds[evidence] < timedelta(seconds=persist)

    @rule(seconds=st.sampled_from([1, 59, 60, 301, 3_600, 50_000]))
    def wait(self, seconds):
        self.now += seconds
        self.books.pass_time(self.now)
        before = dict(self.books.cases)
        assert self.books.pass_time(self.now) == []
        assert self.books.cases == before
        for case in self.books.cases.values():
            if case.alert.status is AlertStatus.WAITING:
                assert not any(one.has_lasted(after(self.now)) for one in case.evidence)

    @rule(key=st.sampled_from(KEYS), closes=st.booleans())
    def person(self, key, closes):
        case = self.books.cases.get(key)
        if case is not None and (closes or case.is_notified):
            step = state_machine.close if closes else state_machine.acknowledge
            if closes:
                self.holds = {one: since for one, since in self.holds.items() if one not in case.alert.evidence}
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
    def nobody_speaks_for_two_alerts(self):
        said = [one.name for case in self.books.cases.values() for one in case.evidence]
        assert sorted(said) == sorted(self.holds)

    @invariant()
    def an_alert_is_what_its_witnesses_say(self):
        told = {alert_id for alert_id, _, _ in self.books.told}
        for key, case in self.books.cases.items():
            alert = case.alert
            assert (alert.key, alert.is_over) == (key, False)
            assert (alert.id in told) is (alert.status is not AlertStatus.WAITING)
            assert alert.evidence == {one.name for one in case.evidence}
            assert bool(case.evidence) is (alert.gone_since is None)
            for one in case.evidence:
                assert one.since == self.holds[one.name], "how long it has held is the witness's own"
            held = [one for one in case.evidence if one.has_lasted(after(self.now))] or case.evidence
            if held:
                assert alert.urgency is min(one.finding.urgency for one in held)

    @rule()
    def heal(self):
        """All is well again: everything that was opened is resolved, once."""
        self.judge([], EVIDENCE, ())
        self.now += max(SETTINGS.persist, SETTINGS.thresholds.flap_seconds)
        self.books.pass_time(self.now)
        assert self.books.cases == {}
        momentary = {alert.id for alert in self.books.over if alert.condition == "recovered"}
        said = Counter((alert_id, what) for alert_id, what, _ in self.books.told)
        for alert_id in {alert_id for alert_id, _, _ in self.books.told} - momentary:
            assert said[alert_id, What.OPENED] == said[alert_id, What.RESOLVED] == 1


TestLife = Life.TestCase
TestLife.settings = hypothesis_settings(stateful_step_count=30)
