"""`redrive alerts ls` and `show`: alerts, with their messages and whether each was delivered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.alerts.noun import (
    LARGEST_ID,
    MARKS,
    app,
    parse_severity,
    refuse_alert_errors,
    unconfigured,
    with_mark,
)
from redrive.cli.command import command
from redrive.cli.format import ago, at, counted, due, in_a_line, style_of
from redrive.cli.output import Column, Output, iso
from redrive.cli.session import Limit, Session
from redrive.model.alerts import Alert, Send, SendStatus, Severity, What

if TYPE_CHECKING:
    from redrive.alerts.service import Alerts


_LATELY = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class _AlertWithMessages:
    """An alert with its messages."""

    alert: Alert
    sends: Sequence[Send]
    silenced_until: datetime | None = None
    unconfigured: Sequence[str] = ()
    """Channels that are not configured here although messages to them wait."""

    @property
    def failed(self) -> list[Send]:
        """Return the messages that were not delivered, or not yet."""
        return [send for send in self.sends if send.status is not SendStatus.SENT and send.error]

    def document(self) -> dict[str, Any]:
        """Return the alert and its messages as a JSON document."""
        until = None if self.silenced_until is None else iso(self.silenced_until)
        return {**self.alert.document(), "silenced_until": until, "sends": [send.document() for send in self.sends]}


@command(app)
def ls(
    session: Session,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Include resolved alerts.")] = False,
    urgency: Annotated[str | None, typer.Option(metavar="P1|P2|P3", help="Only alerts of this severity.")] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only alerts about this pipeline, flow, service, table, slot or consumer."),
    ] = None,
    limit: Limit = 50,
) -> None:
    """List open alerts, the most severe first, and recent ones whose messages were not delivered.

    Examples: redrive alerts ls; redrive alerts ls --all --subject vendor
    """
    tier = None if urgency is None else parse_severity(urgency)
    with session.opened() as store:
        alerts = store.alerts
        found = _most_urgent_first(alerts, tier, subject, limit + 1)
        if all_:
            found += alerts.find(status="resolved", urgency=tier, subject=subject, limit=limit + 1)
        else:
            found += _undelivered(alerts, tier, subject, known=found)
        silenced = alerts.silenced_until(found[:limit])
        shown = [_with_messages(alerts, alert, silenced.get(alert.id)) for alert in found[:limit]]
    out = session.out
    if out.json:
        out.document([listed.document() for listed in shown])
    else:
        out.table(_COLUMNS, [_row(listed) for listed in shown])
    if not shown:
        out.say("no alerts match" if (tier, subject) != (None, None) else "no open alerts")
    if len(found) > limit:
        out.next_steps([("list more alerts", session.again_with("--limit", limit * 5))])
    if not out.json:
        _say_undelivered(out, shown)


@command(app)
def show(
    session: Session,
    alert_id: Annotated[
        int, typer.Argument(metavar="ID", help="Id of the alert.", show_default=False, min=1, max=LARGEST_ID)
    ],
) -> None:
    """Show one alert, with its messages and whether each was delivered.

    Examples: redrive alerts show 17; redrive alerts show 17 --json
    """
    from redrive.alerts.delivery.message import compose

    with session.opened() as store, refuse_alert_errors():
        alert = store.alerts.get(alert_id)
        found = _with_messages(store.alerts, alert, store.alerts.silenced_until([alert]).get(alert_id))
        message = compose(_as_it_stands(found.alert), found.alert, store.alerts.settings)
    out = session.out
    if out.json:
        out.document(found.document())
    elif out.terminal:
        often = "once" if alert.seen == 1 else counted(alert.seen, "time")
        silent = "" if found.silenced_until is None else f"; silenced until {at(found.silenced_until)}"
        out.prose(f"{message.plain()}\n\n{alert.status}; found {often}, last {ago(alert.last_seen)}{silent}")
        if found.sends:
            out.text("")
            out.table(_SEND_COLUMNS, [_send_row(send) for send in found.sends])
    else:
        rows = {name: _flat(value) for name, value in found.document().items()}
        out.table((Column(title="field"), Column(title="value")), list(rows.items()))
    _say_undelivered(out, [found])


def _in_marks(results: Iterable[str]) -> str:
    parts = (result.rpartition(":") for result in results)
    return " ".join(f"{channel} {MARKS[SendStatus(status)]}" if channel else status for channel, _, status in parts)


_COLUMNS = (
    Column(title="id", show=str, right=True),
    Column(title="urgency", heading="severity", style=style_of),
    Column(title="status", style=style_of),
    Column(title="since", show=ago),
    Column(title="subject", least=12, drop=2),
    Column(title="title", least=30, wrap=True),
    Column(title="told", heading="delivery", show=_in_marks, drop=1),
    Column(title="condition", hidden=True),
    Column(title="undelivered", hidden=True),
)
_SEND_COLUMNS = (
    Column(title="message"),
    Column(title="channel"),
    Column(title="result", show=with_mark, style=style_of),
    Column(title="when", show=ago),
    Column(title="tries", right=True, drop=2),
    Column(title="why", show=in_a_line, least=30, wrap=True, drop=1),
)


def _with_messages(alerts: Alerts, alert: Alert, silenced_until: datetime | None) -> _AlertWithMessages:
    sends, here = alerts.sends(alert.id), alerts.settings
    waiting = (
        send.channel for send in sends if send.status is SendStatus.WAITING and not here.has_channel(send.channel)
    )
    return _AlertWithMessages(alert, sends, silenced_until, tuple(dict.fromkeys(waiting)))


def _row(found: _AlertWithMessages) -> list[Any]:
    alert = found.alert
    last = {send.channel: send for send in found.sends}  # the newest message to each channel
    results = [f"{send.channel}:{send.status}" for send in last.values()]
    if found.silenced_until is not None:
        results.append("silenced")
    reasons = [f"{send.channel}: {send.error}" for send in found.failed]
    reasons += [f"{name}: not configured here" for name in found.unconfigured]
    subject = str(alert.subject)
    return [alert.id, alert.urgency, alert.status, alert.since, subject, alert.title, results, alert.condition, reasons]


def _send_row(send: Send) -> list[Any]:
    when = send.sent_at if send.status is SendStatus.SENT else send.created_at
    return [send.what, send.channel, send.status, when, send.attempts, send.error]


def _say_undelivered(out: Output, alerts: Iterable[_AlertWithMessages]) -> None:
    for alert in alerts:
        for name in alert.unconfigured:
            out.say(f"alert {alert.alert.id}: messages are waiting: {in_a_line(unconfigured(name))}")
        for send in alert.failed:
            rest = f"next attempt {due(send.due_at)}" if send.status is SendStatus.WAITING else "no further attempt"
            out.say(
                f"alert {alert.alert.id}: {send.channel} ✗ since {at(send.created_at)}, "
                f"{counted(send.attempts, 'attempt')}: {in_a_line(send.error)}; {rest}"
            )


def _most_urgent_first(alerts: Alerts, tier: Severity | None, subject: str | None, limit: int) -> list[Alert]:
    """Return open alerts, the most severe first, of each severity the newest first."""
    tiers = Severity if tier is None else (tier,)
    return [alert for each in tiers for alert in alerts.find(status="open", urgency=each, subject=subject, limit=limit)]


def _undelivered(alerts: Alerts, tier: Severity | None, subject: str | None, *, known: Iterable[Alert]) -> list[Alert]:
    """Return resolved alerts of the last week with messages that were not delivered, except samples."""
    listed, since = {alert.id for alert in known}, datetime.now(UTC) - _LATELY
    unsent = [send for send in alerts.unsent() if send.error and send.created_at >= since]
    failed = [send for send in unsent if send.what is not What.TEST]
    found = [alerts.get(alert_id) for alert_id in {send.alert_id: None for send in failed} if alert_id not in listed]
    return [alert for alert in found if tier in (None, alert.urgency) and subject in (None, alert.subject.name)]


def _as_it_stands(alert: Alert) -> What:
    return What.RESOLVED if alert.is_over and alert.condition != "recovered" else What.OPENED


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
