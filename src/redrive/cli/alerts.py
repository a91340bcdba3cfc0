"""`redrive alerts`: list, acknowledge and resolve alerts; test channels."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive._internal.masking import mask
from redrive.cli.command import command, noun
from redrive.cli.exit_codes import UNAVAILABLE, CommandRefused
from redrive.cli.format import ago, at, counted, due, in_a_line
from redrive.cli.output import Column, Output, iso
from redrive.cli.session import Limit, Session
from redrive.cli.style import style_of
from redrive.model.alerts import Alert, AlertStatus, Send, SendStatus, Severity, What

if TYPE_CHECKING:
    from redrive.alerts.conditions import Condition
    from redrive.alerts.config.settings import AlertSettings, ConditionSettings
    from redrive.alerts.service import Alerts

app = noun("List, acknowledge and resolve alerts; test channels.", bare="ls")

_LATELY = timedelta(days=7)
_SPANS = (("d", 86_400), ("h", 3_600), ("min", 60))
_MARKS = {SendStatus.SENT: "✓", SendStatus.FAILED: "✗", SendStatus.WAITING: "…"}
_MOST_CHOSEN = 100_000
_LARGEST = 2**63 - 1  # that a database can have
_Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Ids of alerts.", show_default=False, min=1, max=_LARGEST)
]


@dataclass(frozen=True, slots=True)
class _AlertWithMessages:
    """An alert, and the messages about it."""

    alert: Alert
    sends: Sequence[Send]
    silenced_until: datetime | None = None
    unconfigured: Sequence[str] = ()
    """The channels for which messages wait and which are not configured here."""

    @property
    def failed(self) -> list[Send]:
        """Messages that were not delivered, for good or so far."""
        return [one for one in self.sends if one.status is not SendStatus.SENT and one.error]

    def document(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        until = None if self.silenced_until is None else iso(self.silenced_until)
        return {**self.alert.document(), "silenced_until": until, "sends": [one.document() for one in self.sends]}


# ── queries ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    tier = None if urgency is None else _urgency(urgency)
    with session.opened() as store:
        desk = store.alerts
        found = _most_urgent_first(desk, tier, subject, limit + 1)
        if all_:
            found += desk.find(status="resolved", urgency=tier, subject=subject, limit=limit + 1)
        else:
            found += _undelivered(desk, tier, subject, known=found)
        silenced = desk.silenced_until(found[:limit])
        told = [_told(desk, alert, silenced.get(alert.id)) for alert in found[:limit]]
    out = session.out
    if out.json:
        out.document([one.document() for one in told])
    else:
        out.table(_COLUMNS, [_row(one) for one in told])
    if not told:
        out.say("no alerts match" if (tier, subject) != (None, None) else "no open alerts")
    if len(found) > limit:
        out.next_steps([("list more alerts", session.again_with("--limit", limit * 5))])
    if not out.json:
        _say_undelivered(out, told)


@command(app)
def show(
    session: Session,
    alert_id: Annotated[
        int, typer.Argument(metavar="ID", help="Id of the alert.", show_default=False, min=1, max=_LARGEST)
    ],
) -> None:
    """Show one alert, with its messages and whether each was delivered.

    Examples: redrive alerts show 17; redrive alerts show 17 --json
    """
    from redrive.alerts.delivery.message import compose

    with session.opened() as store, _in_a_sentence():
        alert = store.alerts.get(alert_id)
        told = _told(store.alerts, alert, store.alerts.silenced_until([alert]).get(alert_id))
        message = compose(_as_it_stands(told.alert), told.alert, store.alerts.settings)
    out = session.out
    if out.json:
        out.document(told.document())
    elif out.terminal:
        often = "once" if alert.seen == 1 else counted(alert.seen, "time")
        silent = "" if told.silenced_until is None else f"; silenced until {at(told.silenced_until)}"
        out.prose(f"{message.plain()}\n\n{alert.status}; found {often}, last {ago(alert.last_seen)}{silent}")
        if told.sends:
            out.text("")
            out.table(_SEND_COLUMNS, [_send_row(one) for one in told.sends])
    else:
        rows = {name: _flat(value) for name, value in told.document().items()}
        out.table((Column(title="field"), Column(title="value")), list(rows.items()))
    _say_undelivered(out, [told])


@command(app)
def rules(session: Session) -> None:
    """List every alert condition, with its severity and the thresholds set here.

    Examples: redrive alerts rules; redrive alerts rules --json
    """
    from redrive.alerts.conditions import CONDITIONS

    with session.opened() as store:
        settings = store.alerts.settings
    out = session.out
    if out.json:
        own = [_defined_rule(name, one) for name, one in settings.defined.items()]
        out.document([*(_rule(one, settings) for one in CONDITIONS.values()), *own])
    else:
        own_rows = [_defined_row(name, one) for name, one in settings.defined.items()]
        out.table(_RULE_COLUMNS, [*(_rule_row(one, settings) for one in CONDITIONS.values()), *own_rows])
    if not settings.enabled:
        out.say(OFF)


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    """Acknowledge alerts: they are not repeated, unless they become more severe.

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
        chosen = [one.id for one in wanted if one.status is AlertStatus.OPEN]
        if not chosen:
            session.out.say("no open alert matches. Nothing was changed")
    _decide(session, chosen, lambda desk, alert_id, who: desk.acknowledge(alert_id, by=who, note=note), "acknowledged")


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
        raise CommandRefused(
            "--note is missing: it is required with an ID. Say why the alert is resolved. Nothing was changed"
        )
    else:
        said = note
        _decide(session, ids or (), lambda desk, alert_id, who: desk.resolve(alert_id, by=who, note=said), "resolved")


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

    tier = _urgency(urgency)
    if not check_channels(session.settings).enabled:
        raise CommandRefused(OFF)
    is_configured = session.settings.file is not None or session.settings.store is not None
    with session.opened(create=is_configured) as store:  # as the watch does: channels are tested before the first run
        messages, out = store.alerts.test(tier, pipeline=pipeline), session.out
        sends = [one for one in messages if one.what is What.TEST]
        if out.json:
            out.document([one.document() for one in sends])
        else:
            out.table(_TEST_COLUMNS, [[one.channel, one.status, one.error] for one in sends])
        if not _routed(store.alerts.settings, tier, pipeline):
            out.say(
                f"no channel is configured for {tier}: the alert goes to the log. Add one to [routes] in redrive.toml"
            )
        sent = {one.channel for one in sends if one.status is SendStatus.SENT}
        if wait and any(one.what is What.RESOLVED and one.channel in sent for one in messages):
            out.say("closing the incident in a minute; Ctrl-C leaves that to the watch")
            time.sleep(TEST_LASTS.total_seconds())
            store.alerts.send_due()
    if any(one.status is not SendStatus.SENT for one in sends):
        raise typer.Exit(UNAVAILABLE)


def _decide(session: Session, ids: Iterable[int], decide: Callable[[Alerts, int, str], Alert], done: str) -> None:
    from redrive.dlq.status import actor

    with session.opened() as store, _in_a_sentence():
        for alert_id in ids:
            store.alerts.get(alert_id)  # where one of them is mistyped, nothing is changed
        changed = [decide(store.alerts, alert_id, actor()) for alert_id in dict.fromkeys(ids)]
    if session.out.json:
        session.out.document([one.document() for one in changed])
    for alert in changed:
        session.out.say(f"{done} alert {alert.id}: {alert.urgency} {alert.title}")


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Raise a usage error for an alert that does not exist or is resolved."""
    from redrive.errors import AlertError

    try:
        yield
    except AlertError as error:
        raise CommandRefused(str(error)) from None


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────

OFF = "alerts are disabled by `enabled = false` in [alerts] or REDRIVE_ALERTS=off: nothing is delivered"


def _in_a_mark(status: str) -> str:
    return f"{_MARKS[SendStatus(status)]} {status}"


def _in_marks(results: Iterable[str]) -> str:
    told = (one.rpartition(":") for one in results)
    return " ".join(f"{channel} {_MARKS[SendStatus(status)]}" if channel else status for channel, _, status in told)


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
    Column(title="result", show=_in_a_mark, style=style_of),
    Column(title="when", show=ago),
    Column(title="tries", right=True, drop=2),
    Column(title="why", show=in_a_line, least=30, wrap=True, drop=1),
)
_TEST_COLUMNS = (
    Column(title="channel"),
    Column(title="result", show=_in_a_mark, style=style_of),
    Column(title="why", show=in_a_line, least=30, wrap=True, drop=1),
)
_RULE_COLUMNS = (
    Column(title="urgency", heading="severity", style=style_of),
    Column(title="condition"),
    Column(title="when", least=40, wrap=True),
    Column(title="set by", least=24, wrap=True),
)


def unconfigured(channel: str) -> str:
    """Return the note about messages that wait for a channel which is not configured here."""
    return (
        f"channel {channel} is not configured here. A process whose redrive.toml has [channels.{channel}] delivers them"
    )


def _told(desk: Alerts, alert: Alert, silenced_until: datetime | None) -> _AlertWithMessages:
    sends, here = desk.sends(alert.id), desk.settings
    waiting = (one.channel for one in sends if one.status is SendStatus.WAITING and not here.has_channel(one.channel))
    return _AlertWithMessages(alert, sends, silenced_until, tuple(dict.fromkeys(waiting)))


def _row(told: _AlertWithMessages) -> list[Any]:
    alert = told.alert
    last = {one.channel: one for one in told.sends}  # the newest message to each channel
    results = [f"{one.channel}:{one.status}" for one in last.values()]
    if told.silenced_until is not None:
        results.append("silenced")
    reasons = [f"{one.channel}: {one.error}" for one in told.failed]
    reasons += [f"{name}: not configured here" for name in told.unconfigured]
    subject = str(alert.subject)
    return [alert.id, alert.urgency, alert.status, alert.since, subject, alert.title, results, alert.condition, reasons]


def _send_row(send: Send) -> list[Any]:
    when = send.sent_at if send.status is SendStatus.SENT else send.created_at
    return [send.what, send.channel, send.status, when, send.attempts, send.error]


def _say_undelivered(out: Output, told: Iterable[_AlertWithMessages]) -> None:
    for one in told:
        for name in one.unconfigured:
            out.say(f"alert {one.alert.id}: messages are waiting: {in_a_line(unconfigured(name))}")
        for send in one.failed:
            rest = f"next attempt {due(send.due_at)}" if send.status is SendStatus.WAITING else "no further attempt"
            out.say(
                f"alert {one.alert.id}: {send.channel} ✗ since {at(send.created_at)}, "
                f"{counted(send.attempts, 'attempt')}: {in_a_line(send.error)}; {rest}"
            )


def _most_urgent_first(desk: Alerts, tier: Severity | None, subject: str | None, limit: int) -> list[Alert]:
    """Return open alerts, the most severe first, of each severity the newest first."""
    tiers = Severity if tier is None else (tier,)
    return [one for each in tiers for one in desk.find(status="open", urgency=each, subject=subject, limit=limit)]


def _undelivered(desk: Alerts, tier: Severity | None, subject: str | None, *, known: Iterable[Alert]) -> list[Alert]:
    """Return resolved alerts of the last week with messages that were not delivered, except samples."""
    listed, since = {one.id for one in known}, datetime.now(UTC) - _LATELY
    failed = [one for one in desk.unsent() if one.error and one.what is not What.TEST and one.created_at >= since]
    found = [desk.get(alert_id) for alert_id in {one.alert_id: None for one in failed} if alert_id not in listed]
    return [one for one in found if tier in (None, one.urgency) and subject in (None, one.subject.name)]


def _as_it_stands(alert: Alert) -> What:
    return What.RESOLVED if alert.is_over and alert.condition != "recovered" else What.OPENED


def _urgency(said: str) -> Severity:
    try:
        return Severity(said.strip().upper())
    except ValueError:
        raise CommandRefused(f"{said!r} is not a severity. It must be one of {', '.join(Severity)}") from None


def _routed(settings: AlertSettings, tier: Severity, pipeline: str | None) -> bool:
    own = settings.pipelines.get(pipeline or "")
    return bool(settings.routes.get(tier) or (own is not None and own.routes.get(tier)))


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _rule(condition: Condition, settings: AlertSettings) -> dict[str, Any]:
    return {
        "condition": condition.name,
        "urgency": str(condition.urgency),
        "when": condition.words,
        "thresholds": {name: getattr(settings.thresholds, name) for name in condition.thresholds},
        "elsewhere": condition.elsewhere,
    }


def _rule_row(condition: Condition, settings: AlertSettings) -> list[Any]:
    said = [f"{name} = {_as_set(name, getattr(settings.thresholds, name))}" for name in condition.thresholds]
    if condition.elsewhere is not None:
        own = condition.elsewhere.removeprefix("[alerts] ")
        is_own = own != condition.elsewhere
        said.append(f"{own} = {_as_set(own, getattr(settings, own))}" if is_own else condition.elsewhere)
    return [condition.urgency, condition.name, condition.words, ", ".join(said)]


def _defined_rule(name: str, own: ConditionSettings) -> dict[str, Any]:
    limits = {limit: getattr(own, limit) for limit in ("above", "below") if getattr(own, limit) is not None}
    when = mask(own.title or f"a number of your own: {own.metric or own.query or own.probe}")
    return {
        "condition": name,
        "urgency": str(own.severity),
        "when": when,
        "thresholds": limits,
        "elsewhere": f"[conditions.{name}]",
    }


def _defined_row(name: str, own: ConditionSettings) -> list[Any]:
    rule = _defined_rule(name, own)
    limits = [f"{limit} = {value:.10g}" for limit, value in rule["thresholds"].items()]
    return [rule["urgency"], name, rule["when"], ", ".join([*limits, rule["elsewhere"]])]


def _as_set(name: str, value: float) -> str:
    """A threshold as `redrive.toml` may have it."""
    if name.endswith("_bytes"):
        return f'"{value / 1e9:g}GB"'
    if name.endswith(("_drop", "_share")):
        return f'"{value * 100:g}%"'
    if name in ("persist", "recovery") or name.endswith(("_seconds", "_grace", "silence", "duration_least")):
        unit, size = next((one for one in _SPANS if value and value % one[1] == 0), ("s", 1))
        return f'"{value / size:g}{unit}"'
    return f"{value:_}"


# The commands that have files of their own.
for _name in ("custom_alerts", "silences"):
    import_module(f"redrive.cli.{_name}")
