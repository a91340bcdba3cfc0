"""What the reference is about: every public name, page by page. What is missing here, or named by no page, is an error.

Made    a user makes it: its parameters are shown
Given   a user is handed it: its fields and methods are shown
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any, get_args

from docstrings import parse

import redrive
from redrive import errors
from redrive.alerts.service import Alerts
from redrive.calls.attempts import AttemptBlock, Attempts
from redrive.calls.metrics.counters import CallStats
from redrive.dlq.filters import Filter
from redrive.dlq.queue import DeadLetters
from redrive.dlq.replay.target import ReplayTarget
from redrive.model import alerts, calls, letters, runs, tasks
from redrive.policy.breaker import CircuitState as Circuit
from redrive.policy.consensus import DrainedKey
from redrive.store.repositories.runs import RunRepository
from redrive.store.repositories.service_state import ServiceState, ServiceStateRepository
from redrive.store.repositories.services import EndpointSums, ServiceMinute, ServiceRepository, ServiceWindow
from redrive.store.repositories.tasks import AttemptRow, ChangeRow, TaskCause, TaskDetails, TaskRepository, TaskRow
from redrive.store.retention.finished import StorePurged
from redrive.store.store import StoreInfo
from redrive.tasks.flow import Task
from redrive.tasks.operator.actions import OperatorAction
from redrive.tasks.operator.cancel import TasksCancelled


@dataclass(frozen=True, slots=True)
class Entry:
    """One name.

    title    as a user writes it
    what     said behind the title, where two names differ only in their case
    only     of its methods, these
    without  of its methods, none of these: redrive's own parts call them
    first    its methods that are shown first, in this order; the others follow as the code has them
    """

    thing: Any
    title: str
    made: bool = False
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    what: str = ""

    @property
    def anchor(self) -> str:
        """Where its heading is on its page, as sites and repositories have it."""
        return slug(f"{self.title} {self.what}")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the reference."""

    file: str
    title: str
    intro: str
    entries: list[Entry] = field(default_factory=list)


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def public(*names: str, **without: tuple[str, ...]) -> list[Entry]:
    """Names of `redrive` itself, which a user makes or calls."""
    return [
        Entry(getattr(redrive, name), f"redrive.{name}", made=True, without=without.get(name, ())) for name in names
    ]


def given(*things: Any) -> list[Entry]:
    """What a user is handed."""
    return [
        Entry(one, f"redrive.{one.__name__}" if one.__name__ in redrive.__all__ else one.__name__) for one in things
    ]


def among(module: Any, prefix: str) -> list[Entry]:
    """All that a module offers."""
    return [Entry(getattr(module, name), f"{prefix}.{name}", made=True) for name in module.__all__]


def _errors() -> list[Entry]:
    names = [name for name in redrive.__all__ if _is_error(getattr(redrive, name))]
    return [Entry(getattr(redrive, name), f"redrive.{name}", made=True) for name in names]


def _family() -> str:
    """The hierarchy as it is drawn beside the code."""
    return next(part for part in parse(inspect.getdoc(errors) or "").rest if part.startswith("```"))


def _is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseException)


def pages() -> list[Page]:
    """The pages, in the order in which they are listed."""
    import redrive.observe
    import redrive.testing

    return [
        Page(
            "calls.md",
            "Calls",
            "Services and their policies. The guide is [Calls](../calls.md); [Verdicts](../verdicts.md) lists how each "
            "error is classified. A call that fails raises the function's own exception, or one of the "
            "[errors](errors.md) below `CallError`. An invalid policy raises `ValueError` or `TypeError` when it is "
            "created; a risky one emits a [`PolicyWarning`](errors.md#redrivepolicywarning).",
            [
                *public("Service"),
                Entry(redrive.retry, "redrive.retry", what="the decorator"),
                Entry(redrive.run_with_timeout, "redrive.run_with_timeout"),
                *public("Retry", Retry=("decide",)),
                *public("Timeout", Timeout=("phase",)),
                *public("Breaker", "RetryBudget", "KeyPool", "Token", "Classifier"),
                *public("classify", "on_event"),
                *given(
                    redrive.Verdict,
                    redrive.Kind,
                    CallStats,
                    Circuit,
                    Attempts,
                    AttemptBlock,
                    calls.Failure,
                    calls.Attempt,
                ),
            ],
        ),
        Page(
            "letters.md",
            "Dead letters",
            "`store.dlq` stores, finds, edits, replays and discards rejected records. The guide is "
            "[Dead letters](../letters.md). Invalid arguments raise "
            "[`LetterError`](errors.md#redrivelettererror) before anything is changed.",
            [
                Entry(
                    DeadLetters,
                    "store.dlq",
                    without=("put_within",),
                    first=(
                        *("put", "put_many"),
                        *("find", "each", "get", "count", "causes", "history", "audit", "size"),
                        *("discard", "escalate", "reopen", "edit", "edit_many"),
                        "replay",
                        *("purge", "export", "import_"),
                    ),
                ),
                Entry(Filter, "Filter", made=True, only=()),
                *public("NewLetter", "Schedule", Schedule=("due",)),
                *given(redrive.Letter, letters.Status, letters.ErrorType, letters.Cause, letters.Stored),
                *given(letters.Changed, letters.ReplayReport, letters.FailedCause, ReplayTarget),
                *given(letters.Edit, letters.EditReport, letters.Change, letters.Purged, letters.Imported),
                *given(letters.History, letters.AuditEntry, letters.QueueSize),
            ],
        ),
        Page(
            "rows.md",
            "Rows",
            "Pipelines, sources and sinks. The guide is [Rows](../rows.md). An invalid setup raises "
            "[`PipelineError`](errors.md#redrivepipelineerror) before anything is read.",
            [
                *public("Pipeline", "Gate"),
                *given(redrive.Report, runs.RunStatus, runs.Tier, runs.Counts, runs.Progress),
                *among(redrive.rows, "redrive.rows"),
            ],
        ),
        Page(
            "tasks.md",
            "Tasks",
            "Flows. The guide is [Tasks](../tasks.md). An invalid flow raises "
            "[`FlowError`](errors.md#redriveflowerror).",
            [
                *public("Flow", "Branch"),
                *given(redrive.FlowReport, tasks.FlowStatus, tasks.State, Task, OperatorAction, TasksCancelled),
                *given(tasks.FlowProgress, tasks.RunningTask),
            ],
        ),
        Page(
            "store.md",
            "The store",
            "The database of redrive, and its queries. [Dead letters](letters.md) and [alerts](alerts.md) have pages "
            "of their own. Guides: [Configuration](../configuration.md), [Operations](../operations.md). A database "
            "that cannot be used raises [`StoreError`](errors.md#redrivestoreerror).",
            [
                *public("connect"),
                *given(redrive.Store),
                Entry(StoreInfo, "StoreInfo", what="of a store"),
                *given(StorePurged),
                Entry(RunRepository, "store.runs", without=("find_by_prefix",)),
                Entry(TaskRepository, "store.tasks", without=("find_by_prefix", "inputs")),
                *given(TaskRow, TaskDetails, AttemptRow, ChangeRow, TaskCause),
                Entry(ServiceRepository, "store.services", without=("add", "on_close", "close")),
                *given(ServiceWindow, ServiceMinute, EndpointSums),
                Entry(ServiceStateRepository, "store.shared", without=("read", "publish", "on_close", "close")),
                *given(ServiceState, DrainedKey),
            ],
        ),
        Page(
            "alerts.md",
            "Alerts",
            "Open, find, acknowledge and resolve alerts: `store.alerts`. The guide is [Alerts](../alerts.md); channels "
            "and routes are set in [`redrive.toml`](../configuration.md). An alert that does not exist is an "
            "`AlertError`.",
            [
                Entry(
                    Alerts,
                    "store.alerts",
                    only=("find", "get", "sends", "unsent", "acknowledge", "resolve", "test", "purge", "send_due"),
                ),
                *given(alerts.Alert, alerts.AlertStatus, alerts.Subject),
                Entry(alerts.Severity, "Urgency", without=("outranks",)),
                Entry(alerts.Facts, "Facts", without=("of",)),
                *given(alerts.Send, alerts.SendStatus, alerts.What),
            ],
        ),
        Page(
            "events.md",
            "Events",
            "The events that are passed to [`redrive.on_event`](calls.md#redriveon_event) and to `on_event=` of a "
            "service, a pipeline or a flow. The guide is [Observing](../observe.md).",
            [
                *given(*(one for one in get_args(calls.Event) if one is not calls.Attempt)),
                Entry(redrive.observe.mask_value, "redrive.observe.mask_value"),
            ],
        ),
        Page(
            "errors.md",
            "Errors",
            "The exceptions that redrive raises, and those that you raise to state a verdict. If your own function "
            "raises, the caller receives that exception, with a [`Failure`](calls.md#failure) as its attribute "
            "`redrive`.\n\n" + _family(),
            _errors(),
        ),
        Page(
            "testing.md",
            "Testing",
            "`redrive.testing`, for the tests of programs that use redrive. The guide is [Testing](../testing.md).",
            [
                Entry(one.thing, one.title, made=one.thing.__name__ not in {"Request", "Headers"}, without=("head",))
                for one in among(redrive.testing, "redrive.testing")
            ],
        ),
    ]


def unlisted(listed: list[Page]) -> list[str]:
    """Public names that no page has."""
    titles = {entry.title for page in listed for entry in page.entries}
    names = [f"redrive.{name}" for name in redrive.__all__ if name != "rows"]
    names += [f"redrive.rows.{name}" for name in redrive.rows.__all__]
    names += [f"store.{part}" for part in ("dlq", "runs", "tasks", "services", "alerts", "shared")]
    return [f"{name} has no entry; add it to docs/generate/plan.py" for name in names if name not in titles]
