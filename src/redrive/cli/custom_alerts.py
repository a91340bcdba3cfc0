"""`redrive alerts open`: alerts of your own, from a script."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.cli.alerts import OFF, app
from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import counted
from redrive.cli.run_alerts import leave_alerts_to_the_report
from redrive.cli.session import Session


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
    named = dict(_fact(one) for one in fact or ())
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


def _fact(said: str) -> tuple[str, str]:
    name, equals, value = said.partition("=")
    if not equals or not name.strip():
        raise CommandRefused(f"--fact must be NAME=VALUE, not {said!r}. Nothing was changed")
    return name.strip(), value.strip()
