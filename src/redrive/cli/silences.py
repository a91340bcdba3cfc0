"""`redrive alerts silence`, `snooze`, `silences` and `unsilence`: alerts that are not sent for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.alerts import _LARGEST, _in_a_sentence, app
from redrive.cli.command import command
from redrive.cli.durations import seconds
from redrive.cli.format import ago, at
from redrive.cli.output import Column
from redrive.cli.session import Limit, Session

if TYPE_CHECKING:
    from redrive.model.alerts import Silence

_For = Annotated[str, typer.Option("--for", metavar="SPAN", help="How long: 30min, 2h, 3d …", show_default=False)]


@command(app)
def silence(
    session: Session,
    *,
    for_: _For,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for those who wonder.", show_default=False)],
    subject: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts about this pipeline, flow, service, table …")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts of this condition; see `alerts rules`.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Alerts about this pipeline or flow, or that concern it alone.")
    ] = None,
) -> None:
    """Send nothing about some alerts for a while; what still holds when that ends is sent then.

    Of several options all must match. The alerts are recorded and listed meanwhile.
    """
    with session.opened() as store, _in_a_sentence():
        made = store.alerts.silence(
            seconds=seconds("--for", for_), reason=reason, subject=subject, condition=condition, pipeline=pipeline
        )
        matching = sum(made.covers(one) for one in store.alerts.find(status="open", limit=1_000))
    if session.out.json:
        session.out.document(made.document())
    open_now = "no open alert matches now" if not matching else f"{matching:,} open alert{'s'[: matching > 1]} now"
    session.out.say(f"silence {made.id} until {at(made.until)}: {made.about} ({open_now})")


@command(app)
def snooze(
    session: Session,
    alert_id: Annotated[int, typer.Argument(metavar="ID", help="The alert.", show_default=False, min=1, max=_LARGEST)],
    *,
    for_: _For,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "snoozed",
) -> None:
    """Send nothing about one alert for a while; if it still holds when that ends, it is sent again.

    The snooze ends early when the alert is resolved, becomes more severe, or concerns another pipeline or flow.
    """
    with session.opened() as store, _in_a_sentence():
        made = store.alerts.snooze(alert_id, seconds=seconds("--for", for_), reason=reason)
    if session.out.json:
        session.out.document(made.document())
    session.out.say(f"snoozed alert {alert_id} until {at(made.until)} (silence {made.id})")


@command(app)
def silences(
    session: Session,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Those that are over, too.")] = False,
    limit: Limit = 50,
) -> None:
    """List silences, the newest first. Maintenance windows are in redrive.toml."""
    with session.opened() as store:
        found = store.alerts.silences(ended=all_, limit=limit)
    if session.out.json:
        session.out.document([one.document() for one in found])
    else:
        session.out.table(_COLUMNS, [_row(one) for one in found])
    if not found:
        session.out.say("no silences" if all_ else "nothing is silenced")


@command(app)
def unsilence(
    session: Session,
    silence_id: Annotated[
        int, typer.Argument(metavar="SILENCE", help="Its number.", show_default=False, min=1, max=_LARGEST)
    ],
) -> None:
    """End a silence early. What still holds is sent at the next look of the watch."""
    with session.opened() as store, _in_a_sentence():
        ended = store.alerts.end_silence(silence_id)
    if session.out.json:
        session.out.document(ended.document())
    session.out.say(f"ended silence {ended.id}: {ended.about}")


_COLUMNS = (
    Column(title="silence", show=str, right=True),
    Column(title="until", show=at),
    Column(title="status"),
    Column(title="alerts", least=20, wrap=True),
    Column(title="reason", least=20, wrap=True),
    Column(title="by", drop=1),
    Column(title="created", show=ago, drop=2),
)


def _row(one: Silence) -> list[Any]:
    status = "active" if one.until > datetime.now(UTC) else "ended"
    return [one.id, one.until, status, one.about, one.reason, one.created_by, one.created_at]
