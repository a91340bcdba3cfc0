"""Sample alerts for messages."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from redrive.alerts.config.settings import AlertSettings, PipelineSettings
from redrive.model.alerts import Alert, AlertStatus, Facts, Severity, Subject
from redrive.policy.time_of_day import TimeOfDay

MORNING = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)

SETTINGS = AlertSettings(
    links={
        "Console": "https://console.example/{pipeline}/runs/{run_id}?alert={alert}",
        "Status page": "https://status.example/{service}",
    },
    pipelines={
        "vendor": PipelineSettings(
            sla=TimeOfDay.of("sla", "06:30 Asia/Kolkata"),
            runbook=("Look at the causes.", "Ask the vendor for a new file.", "Replay."),
            links={"Wiki": "https://wiki.example/vendor"},
        )
    },
)

FACTS = Facts(
    status="complete",
    run_id=UUID("6b8ef1a2-0000-4000-8000-000000000001"),
    error="could not convert string to float: 'N/A'",
    error_type="ValueError",
    impact="5,400 deliveries are missing in silver.vendor_deliveries until they are replayed",
    sla=MORNING,
    rows_done=174_600,
    rows_total=180_000,
    checkpoint="row 180000",
    letters=5_400,
    rate=0.03,
    cause="fee: Input should be a valid number",
    seconds=3_120,
    usual_seconds=1_200,
    measured={"rejected": 0.03, "threshold": 0.01},
    affected=("settlement", "billing"),
    commands=("redrive dlq causes --pipeline vendor", "redrive dlq replay --pipeline vendor --dry-run"),
    sql="SELECT error_message, count(*)\nFROM pipeline.dead_letter_queue\nGROUP BY 1",
    next_step="Nothing is repeated by itself: bad data stays bad.",
)


def an_alert(**changes):
    """An open P3 about the letters of the pipeline `vendor`."""
    made = Alert(
        id=12,
        key="letters:vendor",
        condition="new_letters",
        urgency=Severity.P3,
        status=AlertStatus.OPEN,
        subject=Subject(kind="pipeline", name="vendor"),
        title="5,400 of 180,000 rows rejected (3.0 %)",
        facts=FACTS,
        since=MORNING,
        opened_at=MORNING,
        last_seen=MORNING + timedelta(minutes=3),
        told_at=MORNING + timedelta(minutes=4),
    )
    return replace(made, **changes)


def over(alert, **changes):
    """The same, two hours later."""
    ended = {"resolved_at": MORNING + timedelta(hours=2), "resolution": "a run was complete"}
    return replace(alert, status=AlertStatus.RESOLVED, **{**ended, **changes})
