"""`redrive alerts ack`, `resolve`, `test` and `open`: decisions about alerts, samples, and alerts of your own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from redrive._internal.masking import mask
from redrive.cli.alerts.noun import (
    LARGEST_ID,
    OFF,
    app,
    parse_severity,
    refuse_alert_errors,
    with_mark,
)
from redrive.cli.command import command
from redrive.cli.exit_codes import UNAVAILABLE, CommandRefused
from redrive.cli.format import counted, in_a_line, style_of
from redrive.cli.output import Column
from redrive.cli.run_report import leave_alerts_to_the_report
from redrive.cli.session import Session
from redrive.model.alerts import Alert, AlertStatus, SendStatus, Severity, What

if TYPE_CHECKING:
    from redrive.alerts.config.settings import AlertSettings
    from redrive.alerts.service import Alerts

_MOST_CHOSEN = 100_000
_Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Ids of alerts.", show_default=False, min=1, max=LARGEST_ID)
]


_TEST_COLUMNS = (
    Column(title="channel"),
    Column(title="result", show=with_mark, style=style_of),
    Column(title="why", show=in_a_line, least=30, wrap=True, drop=1),
)


@command(app)
def ack(
    session: Session,
    ids: _Ids = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All open alerts.")] = False,
    subject: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts about this pipeline, flow, service, table …")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts of this condition, such as sla_missed.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="What is being done about them.")] = None,
) -> None:
    """Acknowledge alerts: they are not sent again, unless they become more severe.

    Examples: redrive alerts ack 17 --note "calling the vendor"; redrive alerts ack --subject vendor
    """
    chosen = ids or []
    if bool(chosen) == (all_ or (subject, condition) != (None, None)):
        raise CommandRefused(
            "no alerts to acknowledge: pass ids, or one of --all, --subject and --condition. Nothing was changed"
        )
    if not chosen:
        with session.opened() as store:
            wanted = store.alerts.find(status="open", subject=subject, condition=condition, limit=_MOST_CHOSEN)
        chosen = [alert.id for alert in wanted if alert.status is AlertStatus.OPEN]
        if not chosen:
            session.out.say("no open alert matches. Nothing was changed")
    _decide(
        session, chosen, lambda alerts, alert_id, who: alerts.acknowledge(alert_id, by=who, note=note), "acknowledged"
    )


@command(app)
def resolve(
    session: Session,
    ids: _Ids = None,
    *,
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Key of an alert opened by `alerts open`; may be repeated.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Reason; required with an ID.")] = None,
) -> None:
    """Resolve alerts by id, or your own by key. A condition that still holds opens a new alert.

    Examples: redrive alerts resolve 17 --note "fixed at the vendor"; redrive alerts resolve --key nightly-export
    """
    if bool(ids) == bool(key):
        raise CommandRefused("no alerts to resolve: pass ids or --key, not both. Nothing was changed")
    if key:
        _resolve_keys(session, key, note)
    elif note is None:
        raise CommandRefused("--note is missing: it is required with an ID, as the reason. Nothing was changed")
    else:
        reason = note
        _decide(
            session, ids or (), lambda alerts, alert_id, who: alerts.resolve(alert_id, by=who, note=reason), "resolved"
        )


def _resolve_keys(session: Session, keys: Iterable[str], note: str | None) -> None:
    from redrive.dlq.status import actor

    with session.opened() as store:
        if not store.alerts.settings.enabled:
            raise CommandRefused(OFF)
        try:
            found = {key: store.alerts.resolve(key, by=actor(), note=note) for key in keys}
        except ValueError as error:
            raise CommandRefused(str(error)) from None
    if session.out.json:
        session.out.document([alert.document() for alert in found.values() if alert is not None])
    for key, alert in found.items():
        if alert is None:
            session.out.say(f"no open alert has the key {mask(key)!r}")
        else:
            session.out.say(f"resolved alert {alert.id}: {alert.urgency} {alert.title}")


@command(app, "test")
def send_test(
    session: Session,
    urgency: Annotated[str, typer.Argument(metavar="P1|P2|P3", help="Severity of the sample.", show_default=False)],
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="Use the routes of this pipeline.")] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait", help="Wait a minute to close the incident, instead of leaving that to the watch."
        ),
    ] = True,
) -> None:
    """Send a sample alert over the real routes, and show whether each channel accepted it.

    An incident that it opens, such as in PagerDuty, is closed after a minute.

    Examples: redrive alerts test P1; redrive alerts test P2 --pipeline vendor --no-wait
    """
    from redrive.alerts.config.read import check_channels
    from redrive.alerts.delivery.outbox import TEST_LASTS

    tier = parse_severity(urgency)
    if not check_channels(session.settings).enabled:
        raise CommandRefused(OFF)
    is_configured = session.settings.file is not None or session.settings.store is not None
    with session.opened(create=is_configured) as store:  # as the watch does: channels are tested before the first run
        messages, out = store.alerts.test(tier, pipeline=pipeline), session.out
        sends = [message for message in messages if message.what is What.TEST]
        if out.json:
            out.document([send.document() for send in sends])
        else:
            out.table(_TEST_COLUMNS, [[send.channel, send.status, send.error] for send in sends])
        if not _routed(store.alerts.settings, tier, pipeline):
            out.say(
                f"no channel is configured for {tier}: the alert goes to the log. Add one to [routes] in redrive.toml"
            )
        sent = {send.channel for send in sends if send.status is SendStatus.SENT}
        if wait and any(message.what is What.RESOLVED and message.channel in sent for message in messages):
            out.say("closing the incident in a minute; Ctrl-C leaves that to the watch")
            time.sleep(TEST_LASTS.total_seconds())
            store.alerts.send_due()
    if any(send.status is not SendStatus.SENT for send in sends):
        raise typer.Exit(UNAVAILABLE)


def _decide(session: Session, ids: Iterable[int], decide: Callable[[Alerts, int, str], Alert], done: str) -> None:
    from redrive.dlq.status import actor

    with session.opened() as store, refuse_alert_errors():
        for alert_id in ids:
            store.alerts.get(alert_id)  # where one of them is mistyped, nothing is changed
        changed = [decide(store.alerts, alert_id, actor()) for alert_id in dict.fromkeys(ids)]
    if session.out.json:
        session.out.document([alert.document() for alert in changed])
    for alert in changed:
        session.out.say(f"{done} alert {alert.id}: {alert.urgency} {alert.title}")


def _routed(settings: AlertSettings, tier: Severity, pipeline: str | None) -> bool:
    own = settings.pipelines.get(pipeline or "")
    return bool(settings.routes.get(tier) or (own is not None and own.routes.get(tier)))


@command(app, "open")
def open_alert(
    session: Session,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Key of the alert, such as nightly-export.", show_default=False)
    ],
    *,
    severity: Annotated[str, typer.Option(metavar="P1|P2|P3", help="Severity.", show_default=False)],
    title: Annotated[
        str, typer.Option(metavar="TEXT", help="Title: one line that describes the problem.", show_default=False)
    ],
    fact: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Fact for the message; may be repeated.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Pipeline or flow of the alert, for its routes and runbook.")
    ] = None,
) -> None:
    """Open an alert of your own, until `redrive alerts resolve --key KEY`.

    Opening an open key again is counted and sends no message, unless it is more severe than before.

    Examples: redrive alerts open nightly-export --severity P2 --title "the nightly export failed";
    redrive alerts open disk --severity P1 --title "disk full" --fact free=0GB
    """
    leave_alerts_to_the_report()
    named = dict(_fact(text) for text in fact or ())
    with session.opened() as store:
        if not store.alerts.settings.enabled:
            raise CommandRefused(OFF)
        try:
            alert = store.alerts.open(
                key=key, severity=severity.strip().upper(), title=title, facts=named, pipeline=pipeline
            )
        except ValueError as error:
            raise CommandRefused(f"{error}. Nothing was changed") from None
    assert alert is not None
    if session.out.json:
        session.out.document(alert.document())
    often = "opened" if alert.seen == 1 else f"already open, found {counted(alert.seen, 'time')}:"
    session.out.say(f"{often} alert {alert.id}: {alert.urgency} {alert.title}")


def _fact(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise CommandRefused(f"--fact must be NAME=VALUE, not {text!r}. Nothing was changed")
    return name.strip(), value.strip()
