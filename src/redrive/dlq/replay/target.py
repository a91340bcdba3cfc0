"""The target of a replay: what letters are sent to, its answers, and which letters it may be sent."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, select

from redrive.calls.dead_letters import TargetStopped
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.dlq.edit.keys import KeysOf
from redrive.dlq.filters import Filter
from redrive.dlq.insert.row_builder import error_text
from redrive.errors import Discard, LetterError, RedriveError, Superseded
from redrive.model.calls import Kind, Verdict
from redrive.model.letters import OPEN, ErrorType, Letter, Status
from redrive.model.tasks import FlowStatus
from redrive.store.schema import letters, task_runs

_classifier = Classifier()
# The record's own fault; anything else is about the target, and the next record would meet it, too.
_OF_THE_RECORD = {Kind.ROW, Kind.DISCARD}
# What a server answers to one request; it answers others.
_STATUS_OF_THE_RECORD = {400, 409, 412, 413, 414, 415, 422}

_NOT_ACCEPTED = "the target did not accept it"

Outcome = str | BaseException | bool | None


class LetterOutcome(Enum):
    """The outcome of a letter that was sent to a target."""

    REPROCESSED = auto()
    FAILED = auto()
    DISCARDED = auto()
    """The target dropped it on purpose."""
    SUPERSEDED = auto()
    """The sink has another row of its key that counts."""


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """The answer of a target for one letter."""

    became: LetterOutcome
    reason: str | None = None
    """None where it was reprocessed."""
    keys: frozenset[str] | None = None
    """The keys of the rows that were written; None where the target does not report them."""
    one_per_run: bool = False
    """Whether other letters of these keys and of the same run count no more."""
    rows: Sequence[Any] = ()
    """Rows whose values the reason may show, where the letter's record does not have them, such as those of a page."""


class Outcomes(list[str | BaseException | None]):
    """One outcome for each record, of a target that knows which rows it has written."""

    def __init__(
        self,
        outcomes: Iterable[str | BaseException | None],
        keys: Sequence[frozenset[str]],
        *,
        one_per_run: bool,
        rows: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        super().__init__(outcomes)
        self.keys = keys
        """By record: the keys in the sink of the rows that were written, and that count from now on."""
        self.one_per_run = one_per_run
        """Whether only the first row of a key and run counts."""
        self.rows = [()] * len(self) if rows is None else rows
        """By record: the rows that its outcome may show values of; they are masked in what is written down of it."""


class ReplayTarget(Protocol):
    """An object that can process records again, such as a row pipeline.

    `reprocess` returns an outcome for each record, in order: None or True if it was accepted, an exception or a text
    with the reason if it was not, `redrive.Discard` if it was dropped on purpose. Returning None instead of a list
    means that all records were accepted. It must be idempotent: after a crash, or if it raised, a record is sent again.

    A target with an attribute `letters_pipeline` receives the letters of the pipeline of that name only, unless others
    are selected explicitly.
    """

    def reprocess(self, records: Sequence[Any]) -> Iterable[Outcome] | None:
        """Process records that were rejected before.

        records  as they were received, or edited
        """


class TargetFailed(RedriveError):
    """The target failed for a reason that is not a record's; the replay stops and its letters stay as they were."""

    def __init__(self, error: Exception, verdict: Verdict) -> None:
        super().__init__(f"the target failed: {error_text(error)}")
        self.error = error
        self.verdict = verdict
        self.answered: list[tuple[Letter, TargetAnswer]] = []
        """Answers before that: these letters were sent and must not be sent again."""
        self.rows = rows_shown_by(error)


_ROWS = "_redrive_rows"


def note_rows(error: BaseException, rows: Sequence[Any]) -> None:
    """Note with an exception the rows whose values its text may show, for the replay that masks it."""
    BaseException.__setattr__(error, _ROWS, rows)  # a class of its own may refuse attributes


def rows_shown_by(error: object) -> Sequence[Any]:
    """Return the rows that were noted with an exception."""
    rows: Sequence[Any] = vars(error).get(_ROWS, ()) if isinstance(error, BaseException) else ()
    return rows


class InvalidTargetAnswer(LetterError):
    """The target does not keep to what it must answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target with its function, and whether it accepts `dry_run`."""

    function: Callable[..., Any]
    rehearses: bool
    takes_letters: bool
    pipeline: str | None = None
    """The pipeline whose letters it takes; None where it is not known."""
    overwrites: bool = False
    """Whether the target is a pipeline that replaces the row of a key in its sink."""
    sink: str | None = None
    """The name of its sink, as runs have it; None where it is not known."""
    keys: KeysOf | None = None
    """Returns the keys of records as its sink compares them; None where that is not known."""

    @classmethod
    def of(cls, target: object) -> Target:
        """A target from an object with `reprocess`, or from a plain function."""
        function = getattr(target, "reprocess", target)
        if not callable(function):
            raise LetterError(
                f"a replay's target is a function of records, or an object with reprocess(records), not {target!r}"
            )
        keywords = _keywords(function)
        owner = getattr(target, "__self__", target)  # of a method, such as pipeline.reprocess
        pipeline = getattr(owner, "letters_pipeline", None)
        return cls(
            function,
            "dry_run" in keywords,
            "letters" in keywords,
            pipeline if isinstance(pipeline, str) else None,
            getattr(owner, "letters_overwrite", False),
            getattr(owner, "letters_sink", None),
            getattr(owner, "letters_keys", None),
        )

    def keys_of(self, records: Sequence[Any]) -> Sequence[str | None]:
        """Return the keys of records as the sink compares them."""
        if self.keys is None or not records:
            return [None] * len(records)
        try:
            return self.keys(records)
        except Exception as error:
            if is_interrupt(error):
                raise
            note_rows(error, records)
            raise TargetFailed(error, _classifier.classify(error, scope="row")) from error

    def try_all(self, letters: Sequence[Letter], *, dry_run: bool) -> list[TargetAnswer]:
        """Return what became of each letter. After an error that is a record's own, each is sent by itself, once."""
        try:
            return self._call(letters, dry_run=dry_run)
        except InvalidTargetAnswer:
            raise
        except TargetStopped as stopped:
            failed = TargetFailed(stopped.error, stopped.verdict)
            done = len(stopped.outcomes)
            failed.answered = list(zip(letters[:done], self._heard(stopped.outcomes, done), strict=True))
            raise failed from stopped.error
        except Exception as error:
            if is_interrupt(error):
                raise
            verdict = _classifier.classify(error, scope="row")
            if not _is_of_a_record(verdict):
                raise TargetFailed(error, verdict) from error
            if len(letters) == 1:
                return [replace(_answer(error), rows=rows_shown_by(error))]
        # By halves, a record would be sent up to log n times: each half begins with records that were accepted before.
        answers: list[TargetAnswer] = []
        for letter in letters:
            try:
                answers += self.try_all([letter], dry_run=dry_run)
            except TargetFailed as failed:
                failed.answered = [*zip(letters, answers, strict=False), *failed.answered]
                raise
        return answers

    def _call(self, letters: Sequence[Letter], *, dry_run: bool) -> list[TargetAnswer]:
        given: dict[str, Any] = {}
        if self.rehearses:
            given["dry_run"] = dry_run
        # Copies: a target may change what it is given, and be given it again by itself.
        sent = copy.deepcopy(list(letters)) if self.takes_letters else []
        if self.takes_letters:
            given["letters"] = sent
        records = [letter.payload for letter in sent] if sent else [copy.deepcopy(letter.payload) for letter in letters]
        return self._heard(self.function(records, **given), len(letters))

    def _heard(self, outcomes: Any, count: int) -> list[TargetAnswer]:
        if outcomes is None:
            return [TargetAnswer(LetterOutcome.REPROCESSED)] * count
        if inspect.iscoroutine(outcomes):
            outcomes.close()
            raise InvalidTargetAnswer("the target is async; wrap it: lambda records: asyncio.run(target(records))")
        if isinstance(outcomes, str | bytes | Mapping) or not isinstance(outcomes, Iterable):
            raise InvalidTargetAnswer(
                f"the target answered {type(outcomes).__name__}; a list with one outcome each is needed"
            )
        heard = [_answer(outcome) for outcome in outcomes]
        if len(heard) != count:
            raise InvalidTargetAnswer(
                f"the target answered {len(heard)} outcomes for {count} records; one each is needed"
            )
        if not isinstance(outcomes, Outcomes):
            return heard
        return [
            replace(answer, keys=keys, one_per_run=outcomes.one_per_run, rows=rows)
            for answer, keys, rows in zip(heard, outcomes.keys, outcomes.rows, strict=True)
        ]


def _is_of_a_record(verdict: Verdict) -> bool:
    return verdict.kind in _OF_THE_RECORD or (
        verdict.kind is Kind.PERMANENT and verdict.status in _STATUS_OF_THE_RECORD
    )


def _answer(outcome: Any) -> TargetAnswer:
    if outcome is None:
        return TargetAnswer(LetterOutcome.REPROCESSED)
    if isinstance(outcome, bool) or type(outcome).__name__ in {"bool_", "bool"}:  # numpy's is no bool
        return TargetAnswer(LetterOutcome.REPROCESSED) if outcome else TargetAnswer(LetterOutcome.FAILED, _NOT_ACCEPTED)
    if isinstance(outcome, Superseded):
        return TargetAnswer(LetterOutcome.SUPERSEDED, str(outcome))
    if isinstance(outcome, BaseException):
        if isinstance(outcome, Discard):
            return TargetAnswer(LetterOutcome.DISCARDED, str(outcome))
        is_dropped = isinstance(outcome, Exception) and _classifier.classify(outcome, scope="row").kind is Kind.DISCARD
        return TargetAnswer(LetterOutcome.DISCARDED if is_dropped else LetterOutcome.FAILED, error_text(outcome))
    if isinstance(outcome, str):
        return TargetAnswer(LetterOutcome.FAILED, outcome or _NOT_ACCEPTED)
    raise InvalidTargetAnswer(
        f"the target answered {outcome!r} for a record; None, True, a reason or an exception is needed"
    )


def _keywords(function: Callable[..., Any]) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return set()
    return {
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


_MOST_NAMED = 5
_ENDED = (FlowStatus.COMPLETE, FlowStatus.ABANDONED)


def scoped(target: Target, chosen: Filter, *, any_pipeline: bool) -> Filter:
    """Return the filter of the letters that the target may be sent.

    A pipeline takes its own letters. A function has no pipeline, so the caller must select the letters it is for.
    """
    if any_pipeline or chosen.pipeline is not None:
        return chosen
    if target.pipeline is not None:
        return chosen.but(pipeline=(target.pipeline,))
    if chosen == Filter(status=chosen.status):
        raise LetterError(
            "the target is a function, and a replay without a filter would send it the letters of every pipeline; "
            "pass pipeline= (--pipeline) or another filter, or any_pipeline=True (--any-pipeline)"
        )
    return chosen


def must_be_one_pipeline(by_pipeline: Mapping[str, int]) -> None:
    """Reject letters of several pipelines for one function, unless the caller allows that."""
    if len(by_pipeline) > 1:
        raise LetterError(
            f"the selected letters belong to {len(by_pipeline)} pipelines ({named(by_pipeline)}); pass pipeline= "
            "(--pipeline) for each one that the target takes, or any_pipeline=True (--any-pipeline). "
            "Nothing was changed"
        )


def must_be_its_own(target: Target, others: Mapping[str, int]) -> None:
    """Refuse letters that were named by id and belong to other pipelines than the target."""
    if others:
        raise LetterError(
            f"{sum(others.values()):,} of the named letters belong to other pipelines ({named(others)}), not to "
            f"{target.pipeline!r}; pass any_pipeline=True (--any-pipeline) if the target takes them. "
            "Nothing was changed"
        )


def must_be_records(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> None:
    """Refuse to replay dead tasks: a target would be sent their input, and the task itself would stay dead."""
    found = _task_of(connection, conditions)
    if found is not None:
        run, flow = found
        raise LetterError(
            f"among the selected letters are dead tasks of the flow {flow!r}, which a replay does not run; use "
            f"`redrive tasks retry --run {run}`, and select other letters by pipeline or error type. "
            "Nothing was changed"
        )


def must_not_hide_tasks(connection: Connection, chosen: Filter, action: str) -> None:
    """Refuse to decide about, or edit, the letters of tasks: the task itself would stay as it is.

    Letters of runs that have ended may be discarded: no task waits for a decision any more.

    Args:
        action: discard, escalate, reopen or edit.
    """
    conditions = [chosen.where()]
    if action == "reopen":
        conditions.append(letters.c.status.in_((Status.DISCARDED, Status.REPROCESSED)))
    else:
        starts = (Status.PENDING,) if action == "escalate" else OPEN
        conditions += [letters.c.status.in_(starts), task_runs.c.status.not_in(_ENDED)]
    found = _task_of(connection, conditions)
    if found is not None:
        run, flow = found
        uses = {
            "discard": f"`redrive tasks accept --run {run}`, or skip or fail instead of accept",
            "escalate": f"`redrive tasks ls --run {run}`, which lists the tasks that wait for a decision",
            "reopen": f"`redrive tasks reopen --run {run}`",
            "edit": f"`redrive tasks retry --run {run}`, after the fault is fixed",
        }
        raise LetterError(
            f"cannot {action}: among the selected letters are tasks of the flow {flow!r}, and a task itself "
            f"would not change. Use {uses[action]}, and select other letters by pipeline or error type. "
            "Nothing was changed"
        )


def _task_of(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> tuple[str, str] | None:
    """Return the run, by its short id, and the flow of a letter that matches and is that of a task."""
    found = (
        select(task_runs.c.run_id, task_runs.c.flow_name)
        .join_from(letters, task_runs, letters.c.run_id == task_runs.c.run_id)
        .where(letters.c.error_type == ErrorType.TASK, *conditions)
        .limit(1)
    )
    row = connection.execute(found).first()
    return None if row is None else (str(row.run_id)[:8], row.flow_name)


def named(by_pipeline: Mapping[str, int]) -> str:
    """Return pipelines with their number of letters, for a message."""
    most = sorted(by_pipeline.items(), key=lambda pair: (-pair[1], pair[0]))
    listed = ", ".join(f"{name}: {count:,}" for name, count in most[:_MOST_NAMED])
    return listed + (", …" if len(most) > _MOST_NAMED else "")
