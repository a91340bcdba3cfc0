"""`redrive alerts silence`, `snooze`, `silences` and `unsilence`: alerts that are not sent for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.alerts.noun import LARGEST_ID, app, refuse_alert_errors
from redrive.cli.command import command
from redrive.cli.format import ago, at, counted, style_of
from redrive.cli.output import Column
from redrive.cli.session import Limit, Session, seconds

if TYPE_CHECKING:
    from redrive.model.alerts import Silence

_For = Annotated[str, typer.Option("--for", metavar="SPAN", help="Duration: 30min, 2h, 3d …", show_default=False)]


@command(app)
def silence(
    session: Session,
    *,
    for_: _For,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, shown with the silence.", show_default=False)],
    subject: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts about this pipeline, flow, service, table …")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts of this condition, as `alerts rules` lists them.")
    ] = None,
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="Alerts about this pipeline or flow.")] = None,
) -> None:
    """Suppress messages about matching alerts for a while; alerts still open when it ends are sent then.

    Of several options, all must match. Alerts are still recorded and listed.

    Examples: redrive alerts silence --for 2h --reason "vendor maintenance" --subject vendor;
    redrive alerts silence --for 1d --reason "known" --condition stale
    """
    with session.opened() as store, refuse_alert_errors():
        made = store.alerts.silence(
            seconds=seconds("--for", for_), reason=reason, subject=subject, condition=condition, pipeline=pipeline
        )
        matching = sum(made.covers(alert) for alert in store.alerts.find(status="open", limit=1_000))
    if session.out.json:
        session.out.document(made.document())
    open_now = "no open alert matches now" if not matching else f"{counted(matching, 'open alert')} now"
    session.out.say(f"silence {made.id} until {at(made.until)}: {made.about} ({open_now})")


@command(app)
def snooze(
    session: Session,
    alert_id: Annotated[
        int, typer.Argument(metavar="ID", help="Id of the alert.", show_default=False, min=1, max=LARGEST_ID)
    ],
    *,
    for_: _For,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason.")] = "snoozed",
) -> None:
    """Suppress messages about one alert for a while; if it is still open when that ends, it is sent again.

    The snooze ends early when the alert is resolved, becomes more severe, or concerns another pipeline or flow.

    Examples: redrive alerts snooze 17 --for 2h; redrive alerts snooze 17 --for 1d --reason "waiting for the vendor"
    """
    with session.opened() as store, refuse_alert_errors():
        made = store.alerts.snooze(alert_id, seconds=seconds("--for", for_), reason=reason)
    if session.out.json:
        session.out.document(made.document())
    session.out.say(f"snoozed alert {alert_id} until {at(made.until)} (silence {made.id})")


@command(app)
def silences(
    session: Session,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Include silences that have ended.")] = False,
    limit: Limit = 50,
) -> None:
    """List silences, newest first. Maintenance windows are in redrive.toml.

    Examples: redrive alerts silences; redrive alerts silences --all --json
    """
    with session.opened() as store:
        found = store.alerts.silences(ended=all_, limit=limit)
    if session.out.json:
        session.out.document([silence.document() for silence in found])
    else:
        session.out.table(_COLUMNS, [_row(silence) for silence in found])
    if not found:
        session.out.say("no silences" if all_ else "no active silences")


@command(app)
def unsilence(
    session: Session,
    silence_id: Annotated[
        int, typer.Argument(metavar="SILENCE", help="Number of the silence.", show_default=False, min=1, max=LARGEST_ID)
    ],
) -> None:
    """End a silence early. Alerts that are still open are sent when the watch evaluates next, or by the next run.

    Examples: redrive alerts unsilence 3; redrive alerts unsilence 3 --json
    """
    with session.opened() as store, refuse_alert_errors():
        ended = store.alerts.end_silence(silence_id)
    if session.out.json:
        session.out.document(ended.document())
    session.out.say(f"ended silence {ended.id}: {ended.about}")


_COLUMNS = (
    Column(title="silence", show=str, right=True),
    Column(title="until", show=at),
    Column(title="status", style=style_of),
    Column(title="alerts", least=20, wrap=True),
    Column(title="reason", least=20, wrap=True),
    Column(title="by", drop=1),
    Column(title="created", show=ago, drop=2),
)


def _row(one: Silence) -> list[Any]:
    status = "active" if one.until > datetime.now(UTC) else "ended"
    return [one.id, one.until, status, one.about, one.reason, one.created_by, one.created_at]
