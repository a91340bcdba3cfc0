"""`redrive watch`: evaluates alert conditions that no run can report itself, and delivers alerts."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.alerts.noun import OFF, unconfigured
from redrive.cli.command import command
from redrive.cli.exit_codes import CommandIncomplete, CommandRefused
from redrive.cli.format import in_a_line, in_json, one_line
from redrive.cli.output import Output, iso
from redrive.cli.run_report import leave_alerts_to_the_report
from redrive.cli.session import Session, seconds
from redrive.cli.store import left_behind
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.alerts.watch import Watch
    from redrive.alerts.watchers import News
    from redrive.model.alerts import Alert
    from redrive.store.store import Store

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LOG = logging.getLogger("redrive.watch")
_PURGE_SECONDS = 20.0  # seconds for which old runs are removed each day: the watch must keep its lease
_MOST_NAMES = 10  # settings that are named on one line
_TIMEOUT_ONCE = 60.0  # seconds to wait for counts and probes if no further check follows


@command(app)
def watch(
    session: Session,
    *,
    once: Annotated[bool, typer.Option("--once", help="Evaluate once and exit: for cron.")] = False,
    every: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Interval between evaluations: 30s, 2min …  [default: from redrive.toml]"),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics at this address, under /metrics.")
    ] = None,
    textfile: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write metrics to this file, for the node exporter.")
    ] = None,
) -> None:
    """Evaluate alert conditions for all pipelines, flows and services of a store, and deliver alerts.

    One watch per store is enough: of several, one leads and the others stand by. SIGTERM and Ctrl-C stop it.

    Examples: redrive watch --listen 127.0.0.1:9464; redrive watch --once
    """
    if once and (every or listen):
        raise CommandRefused(
            f"--once excludes {'--every' if every else '--listen'}: it evaluates once. Remove one of them"
        )
    leave_alerts_to_the_report()
    with ExitStack() as around:
        # A service may be started before the first run: it makes the store that its settings name, and looks.
        is_configured = session.settings.file is not None or session.settings.store is not None
        store = around.enter_context(session.opened(create=is_configured))
        if not store.alerts.settings.enabled:
            raise CommandRefused(OFF)
        status = _Status(session.out, store)
        look = _made(session, store, status, every=every, textfile=textfile, once=once)
        if listen is not None:
            from redrive.observe.prometheus import serve

            server = around.enter_context(serve(store, listen, health=look.health))
            session.out.say(f"serving metrics at {server.url}/metrics")
        status.begin()
        if not once:
            look.run()
            return
        look.once()
    if look.failed:
        raise look.failed[0]
    if look.unmeasured:
        names = _some(list(look.unmeasured))
        raise CommandIncomplete(f"the evaluation is incomplete: cannot measure {names}. Everything else was evaluated")


def _made(
    session: Session, store: Store, status: _Status, *, every: str | None, textfile: str | None, once: bool
) -> Watch:
    from redrive.alerts.config.read import check_channels
    from redrive.alerts.facts.collector import TIMEOUT, LevelCollector
    from redrive.alerts.facts.probes import lag_probes
    from redrive.alerts.watch import Watch
    from redrive.cli.targets import load
    from redrive.config.value_kinds import DAY

    settings = check_channels(session.settings)
    between = settings.every if every is None else seconds("--every", every, most=DAY)
    periodic = {}
    if textfile is not None:
        from redrive.observe.prometheus import write_textfile

        write_textfile(store, textfile)  # a path that cannot be written to is reported at once
        periodic["write the metrics"] = partial(write_textfile, store, textfile)
    levels = LevelCollector(
        store.database,
        settings,
        probes=lag_probes(settings.lags, load),
        figure_probes={figure.probe: load(figure.probe) for figure in settings.defined.values() if figure.probe},
        timeout=_TIMEOUT_ONCE if once else TIMEOUT,
    )
    status.every = None if once else between
    kept = timedelta(days=settings.keep_days)
    return Watch(
        store.database,
        store.alerts,
        levels,
        every=between,
        purges=[lambda: store.services.purge(_ago(store, kept)), *_purges(session, store)],
        periodic=periodic,
        news=status.tell,
    )


def _purges(session: Session, store: Store) -> list[Callable[[], object]]:
    """Return what `[retention]` removes once a day: nothing by default."""
    keep_runs, keep_letters = session.settings.keep_runs, session.settings.keep_letters
    found: list[Callable[[], object]] = []
    if keep_runs is not None:
        found.append(partial(_purge_runs, session, store, timedelta(seconds=keep_runs)))
    if keep_letters is not None:
        found.append(partial(_purge_letters, store, timedelta(seconds=keep_letters)))
    return found


def _purge_runs(session: Session, store: Store, keep: timedelta) -> None:
    from redrive.store.retention.purge import purge_work, results_directory

    where = results_directory(session.settings.result_files, usual=store.results)
    done = purge_work(store.database, before=_ago(store, keep), files=where, within=_PURGE_SECONDS)
    if done.elsewhere:
        _LOG.warning("%s", left_behind(done))


def _purge_letters(store: Store, keep: timedelta) -> None:
    done = store.dlq.purge(older_than=_ago(store, keep), within=_PURGE_SECONDS)
    if done.letters:
        _LOG.info("removed %d letters that were reprocessed or discarded more than %s ago", done.letters, keep)


def _ago(store: Store, span: timedelta) -> datetime:
    """Return a past time by the store's clock: a machine whose clock is ahead would remove recent data."""
    return store.database.read(store.database.dialect.now) - span


def _some(names: Sequence[str]) -> str:
    """Return the first names on one line, and how many are left out."""
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(one_line(name) for name in names[:_MOST_NAMES]) + more


class _Status:
    """Status changes, printed one per line as text, rows or JSON."""

    def __init__(self, out: Output, store: Store) -> None:
        self._out, self._store = out, store
        self.every: float | None = None
        """Seconds between two checks; None for a single check."""

    def begin(self) -> None:
        """Write the heading of rows: settings are not rejected from here on."""
        if not (self._out.terminal or self._out.json):
            self._write("time\twhat\tid\turgency\tsubject\ttitle")

    def tell(self, news: News) -> None:
        """Print the event."""
        from redrive.alerts.watchers import AlertMoved, Leading, SettingsDiffer, StandingBy, Unconfigured, WatchProblem

        match news:
            case AlertMoved(what, alert):
                self._print_alert(what, alert)
            case Leading() if self.every is not None:
                self._out.say(
                    f"watching {self._store.database.name}, every {format_duration(self.every)}; times are UTC"
                )
            case StandingBy(process, host):
                then = "" if self.every is None else "; this one takes over when it ends"
                self._out.say(f"standing by: process {process} on {host} leads{then}")
            case SettingsDiffer(()):
                self._out.say("the leading watch has the same settings now")
            case SettingsDiffer(names):
                self._out.say(
                    f"the leading watch has other settings; those of this watch have no effect: {_some(names)}"
                )
            case Unconfigured(waiting) if waiting:
                for channel, alerts in waiting.items():
                    numbers = _some([str(number) for number in alerts])
                    self._out.say(
                        f"messages about {'alert' if len(alerts) == 1 else 'alerts'} {numbers} are waiting: "
                        f"{in_a_line(unconfigured(channel))}"
                    )
            case WatchProblem(what, None):  # its start is in the log, and is not printed twice
                self._out.say(f"the watch can {what} again")

    def _print_alert(self, what: str, alert: Alert) -> None:
        now = datetime.now(UTC)
        if self._out.json:
            self._write(in_json(json.dumps({"time": iso(now), "what": what, **alert.document()}, ensure_ascii=False)))
        elif self._out.terminal:
            state = "is open" if what == "found" else what
            self._write(one_line(f"{now:%H:%M}  {alert.urgency} {state:<12}  {alert.title} (alert {alert.id})"))
        else:
            cells = (iso(now), what, str(alert.id), str(alert.urgency), str(alert.subject), alert.title)
            self._write("\t".join(one_line(cell) for cell in cells))

    @staticmethod
    def _write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()  # readers of a pipe see it at once
