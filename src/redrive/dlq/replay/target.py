"""What a replay sends letters to, and what it hears back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Protocol

from redrive.calls.dead_letters import TargetStopped
from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.dlq.edit.keys import KeysOf
from redrive.dlq.insert.row_builder import error_text
from redrive.errors import Discard, LetterError, RedriveError, Superseded
from redrive.model.calls import Kind, Verdict
from redrive.model.letters import Letter

_classifier = Classifier()
# The record's own fault; anything else is about the target, and the next record would meet it, too.
_OF_THE_RECORD = {Kind.ROW, Kind.DISCARD}
# What a server answers to one request; it answers others.
_STATUS_OF_THE_RECORD = {400, 409, 412, 413, 414, 415, 422}

_NOT_ACCEPTED = "the target did not accept it"

Outcome = str | BaseException | bool | None


class LetterOutcome(Enum):
    """What became of a letter that was sent to a target."""

    REPROCESSED = auto()
    FAILED = auto()
    DISCARDED = auto()
    """The target dropped it on purpose."""
    SUPERSEDED = auto()
    """The sink has another row of its key that counts."""


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """What a target answered for one letter."""

    became: LetterOutcome
    reason: str | None = None
    """None where it was reprocessed."""
    keys: frozenset[str] | None = None
    """The keys of the rows that were written; None where the target does not say."""
    one_per_run: bool = False
    """Whether other letters of these keys and of the same run count no more."""
    rows: Sequence[Any] = ()
    """Rows whose values the reason may show, where the letter's record does not hold them: those of a page, say."""


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
        """Whether of the rows of one key and run only one counts, the first."""
        self.rows = [()] * len(self) if rows is None else rows
        """By record: the rows that its outcome may show values of; they are masked in what is written down of it."""


class ReplayTarget(Protocol):
    """Anything that can process records again; a row pipeline is one.

    `reprocess` is given the records and answers for each, in order: None or True where it was accepted, an exception
    or a text that says why where it was not, `redrive.Discard` where it was dropped on purpose. Answering nothing at
    all means that all were accepted. It must be idempotent: after a crash, and where it raised, a record comes again.

    A target with an attribute `letters_pipeline` is sent the letters of the pipeline of that name, and no others
    unless they are asked for.
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
        """What it answered before that: these letters were sent, and must not be sent again."""
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
    """A target, found out: how it is called, and whether it can rehearse."""

    function: Callable[..., Any]
    rehearses: bool
    takes_letters: bool
    pipeline: str | None = None
    """The pipeline whose letters it takes; None where it does not say."""
    overwrites: bool = False
    """Whether it is a pipeline that replaces the row of a key in its sink."""
    sink: str | None = None
    """The name of its sink, as runs have it; None where it does not say."""
    keys: KeysOf | None = None
    """What tells the keys of records as its sink compares them; None where it does not say."""

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
    return {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
