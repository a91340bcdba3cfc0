"""A deadline that is missed for days is one incident until the run completes."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from redrive.alerts.facts.snapshot import DueRun
from redrive.alerts.lifecycle import state_machine
from redrive.model.alerts import Subject, What
from tests.support.alert_snapshots import levels, looked, with_thresholds
from tests.support.alert_state import NOON, Books, after

DAY = 86_400
SETTLEMENT = Subject(kind="flow", name="settlement")
KEY = "sla:flow/settlement"


@given(
    grace=st.sampled_from([0, 60, 300, 3_600]),
    looks=st.lists(st.integers(1, 5 * DAY), min_size=1, max_size=60, unique=True).map(sorted),
    comes=st.integers(1, 6 * DAY),
    acknowledged_after=st.integers(0, 60),
)
def test_missed_deadline_is_one_incident_until_the_run_ends(grace, looks, comes, acknowledged_after):
    settings = with_thresholds(sla_grace=float(grace))
    books = Books(settings)
    for number, at in enumerate([*looks, *(day * DAY + grace // 2 for day in range(1, 6) if day * DAY > looks[-1])]):
        deadline = NOON + timedelta(days=at // DAY)  # the latest that has passed
        done = after(comes) if comes <= at else None
        due = DueRun(
            subject=SETTLEMENT,
            sla=deadline,
            done_at=done if done is not None and done >= deadline - timedelta(days=1) else None,
            started=False,
            last_complete=done,
        )
        judgement = looked(levels(due=(due,), now=after(at)), settings)
        books.judge(*judgement.findings, judged=judgement.judged, at=at)
        if number == acknowledged_after and KEY in books.cases and books.alert(KEY).status == "open":
            books.decide(KEY, state_machine.acknowledge, at, by="op", note=None)
    before = [(what, moment) for _, what, moment in books.told if moment < after(comes)]
    assert [what for what, _ in before if what is What.OPENED] in ([], [What.OPENED])
    assert [what for what, _ in before if what is What.RESOLVED] == []
