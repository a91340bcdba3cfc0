"""`redrive services`: what the processes that share a store tell each other about the services they call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command, noun
from redrive.cli.exits import Refused
from redrive.cli.output import Column, iso
from redrive.cli.session import Session
from redrive.cli.wording import ago, at

if TYPE_CHECKING:
    from redrive.store.shared import ServiceState

app = noun("Services: open circuits and used-up keys that processes share.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The service.", show_default=False)]


@command(app)
def ls(session: Session) -> None:
    """Services whose circuit moved of late or whose keys are used up."""
    with session.opened() as store:
        found = store.shared.services()
    if session.out.json:
        session.out.document([_document(one) for one in found])
    else:
        columns = (
            Column(title="service"),
            Column(title="circuit", show=_in_words),
            Column(title="machines", show=", ".join, drop=2, least=12),
            Column(title="next probe", show=ago),
            Column(title="used-up keys", show=", ".join, drop=1, least=12),
            Column(title="last word", show=ago, drop=3),
        )
        session.out.table(columns, [_row(one) for one in found])
    if not found:
        session.out.say("no circuit is open, and no key is used up")


@command(app)
def show(session: Session, name: _Name) -> None:
    """One service: who opened its circuit, which keys are used up."""
    with session.opened() as store:
        found = _of_name(store.shared.services(), name)
    out = session.out
    if out.json:
        out.document(_document(found))
        return
    probe = _moment(found.retry_in)
    rows: list[tuple[str, Any]] = [
        ("service", found.service),
        ("circuit", _in_words(found.state) if out.terminal else found.state),
        ("opened by", ", ".join(found.hosts)),
        ("believed everywhere", found.everywhere),
        ("next probe", at(probe) if out.terminal else probe),
        ("last word", at(found.changed_at) if out.terminal else found.changed_at),
        *((f"key …{key.key_id} used up until", at(key.until) if out.terminal else key.until) for key in found.drained),
    ]
    out.table(
        (Column(title="what"), Column(title="value", least=20)), [row for row in rows if row[1] not in ("", None)]
    )


@command(app)
def reset(
    session: Session,
    name: _Name,
    keys: Annotated[bool, typer.Option("--keys", help="Use its used-up keys again, too.")] = False,
) -> None:
    """Close a circuit in every process that shares the store."""
    with session.opened() as store:
        known = store.shared.reset(name, keys=keys)
    if session.out.json:
        session.out.document({"service": name, "reset": known, "keys": keys})
    said = f"the circuit of {name} is closed" + (", and its keys are in use again" if keys else "")
    session.out.say(
        said if known else f"there was nothing to reset of {name}; `redrive services ls` lists what there is"
    )


def _of_name(found: list[ServiceState], name: str) -> ServiceState:
    for one in found:
        if one.service == name:
            return one
    listed = f"; there are {', '.join(one.service for one in found)}" if found else ""
    raise Refused(f"nothing is known of a service {name!r}: no open circuit, no used-up key{listed}")


def _row(found: ServiceState) -> list[Any]:
    keys = [f"…{key.key_id}" for key in found.drained]
    return [found.service, found.state, found.hosts, _moment(found.retry_in), keys, found.changed_at]


def _in_words(state: str) -> str:
    return state.replace("_", "-")


def _moment(retry_in: float | None) -> datetime | None:
    return None if retry_in is None else datetime.now(UTC) + timedelta(seconds=retry_in)


def _document(found: ServiceState) -> dict[str, Any]:
    return {
        "service": found.service,
        "state": str(found.state),
        "hosts": list(found.hosts),
        "everywhere": found.everywhere,
        "retry_in": found.retry_in,
        "changed_at": None if found.changed_at is None else iso(found.changed_at),
        "drained": [{"key_id": key.key_id, "until": iso(key.until)} for key in found.drained],
    }
