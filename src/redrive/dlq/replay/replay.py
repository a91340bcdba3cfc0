"""Replay: letters go back through a target; each is marked by what became of it.

A replay works on a snapshot: what is rejected while it runs does not join. It claims a batch, sends it, and writes the
results in one transaction, so that it may be killed anywhere and run again: what was sent and not yet marked is sent
once more, to a target that is idempotent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, func, or_, select

from redrive._internal.masking import MASK
from redrive.dlq.edit.keys import respell_all
from redrive.dlq.filters import Filter
from redrive.dlq.insert.row_builder import storable
from redrive.dlq.queries import fetch, snapshot
from redrive.dlq.redact import Redactor
from redrive.dlq.replay.claims import Claims, holders, living_owners, unsaved_runs
from redrive.dlq.replay.outcome import Answered, ReplayCounts, mark
from redrive.dlq.replay.overwrites import UnknownKeys
from redrive.dlq.replay.plan import Progress, ReplayPlan, why_not_sent
from redrive.dlq.replay.schedule import RateLimit, canary_first, has_unknown_key
from redrive.dlq.replay.siblings import StoredTexts, held_siblings
from redrive.dlq.replay.target import (
    LetterOutcome,
    Target,
    TargetAnswer,
    TargetFailed,
    must_be_its_own,
    must_be_one_pipeline,
    must_be_records,
)
from redrive.errors import LetterError, ReplayStopped, StoreError
from redrive.model.letters import OPEN, Letter, ReplayReport
from redrive.store.database import Database
from redrive.store.schema import letter_claims, letters
from redrive.store.sql import in_ids

_LOOK_AGAIN = 0.25
_UNREAD = (
    "it failed again; the message is left out, since it may contain fields of a body that cannot be masked by field"
)


@dataclass(frozen=True, slots=True)
class _ClaimedLetters:
    """The result of claiming letters."""

    batch: list[Letter] = field(default_factory=list)
    """Those to send now."""
    held: dict[int, datetime] = field(default_factory=dict)
    """Those in other hands, and until when."""
    superseded: int = 0
    decided: int = 0


class Replay:
    """One replay of a selection."""

    def __init__(
        self,
        database: Database,
        target: Target,
        plan: ReplayPlan,
        *,
        dry_run: bool,
        redactor: Redactor,
        stored_texts: StoredTexts,
        masks: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._dry = dry_run
        self._database = database
        self._target = target
        self._plan = plan
        self._redactor = redactor
        self._stored_texts = stored_texts
        self._masks = masks
        self._progress = progress or (lambda done, total: None)
        self._claims = Claims(database, lease=plan.lease)
        self._tally = ReplayCounts()
        self._began = datetime.now(UTC)
        self._ids: Sequence[int] = ()
        self._unknown = UnknownKeys(target)
        self._held_by_run = 0
        self._superseded: Sequence[int] = ()  # in a dry run: letters that are only so by the spelling of the sink
        self._by_cause: Counter[str] = Counter()
        self._by_pipeline: Counter[str] = Counter()
        self._by_target: Counter[str] = Counter()
        self._others: dict[str, int] = {}
        self._canary: int | None = None
        self._is_ordered = False  # whether no newer letter may overtake an older one: keys are unknown
        self._pace = RateLimit(plan.rate)
        self._held: dict[int, datetime] = {}  # letters in other hands, and until when
        self._claimed = 0.0, 0.0  # when letters were last claimed, by both clocks: one stops with the machine
        self._sent: Sequence[Letter] = ()
        self._alive = 0  # of those, the ones whose replay was seen to live

    def go(self) -> ReplayReport:
        """Run it, dry or not."""
        return self._run_dry() if self._dry else self._run()

    def _run_dry(self) -> ReplayReport:
        """Do a dry run: read, ask the target if it takes `dry_run`, change nothing."""
        self._respell()
        self._database.read(self._select)
        if self._target.rehearses:
            with self._reporting_progress():
                for batch in self._batches(self._read):
                    self._note_outcomes(batch, self._try(batch))
                    if self._canary_failed():
                        break
        return self.report()

    def _run(self) -> ReplayReport:
        """The real thing."""
        self._respell()
        self._database.read(self._select)
        try:
            with self._reporting_progress(), self._claims.kept_alive():
                for batch in self._batches(self._claim):
                    self._send(batch)
                    if self._canary_failed():
                        break
                else:
                    self._take_over()
        finally:
            with suppress(StoreError):  # a lost store is reported by what failed first; the lease frees the rest
                self._database.write(self._claims.release)
        return self.report()

    # ── what is next ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _respell(self) -> None:
        """Give edited letters the key that the sink has for them; in a dry run, find those that this supersedes."""
        target = self._target
        if target.pipeline is not None:
            with self._reporting_progress():
                changes = respell_all(
                    self._database, target.pipeline, target.keys_of, stored_texts=self._stored_texts, dry_run=self._dry
                )
            self._superseded = [change.id for change in changes if self._dry and change.superseded_at is not None]

    def _select(self, connection: Connection) -> None:
        self._began = self._database.dialect.now(connection)
        conditions = [*self._conditions(self._plan.chosen), *self._but_of_unsaved_runs(connection)]
        # By their last sighting: a letter that was put early may hold the newest record of its key, which is sent last.
        self._ids = snapshot(connection, *conditions, by=(letters.c.last_seen, letters.c.id))
        groups = (letters.c.fingerprint, letters.c.pipeline_name, letters.c.target)
        for cause, pipeline, target, count in connection.execute(
            select(*groups, func.count()).where(*conditions).group_by(*groups)
        ):
            self._by_cause[cause] += count
            self._by_pipeline[pipeline] += count
            if target is not None:
                self._by_target[target] += count
        self._tally.superseded_before = self._of_superseded(connection)
        self._unknown.look(connection, conditions)
        self._others = self._of_others(connection)
        must_be_records(connection, conditions)
        self._refuse_foreign()
        self._is_ordered = self._target.overwrites and has_unknown_key(connection, conditions)
        self._canary = self._plan.canary_size(self._wanted(), dry_run=self._dry)
        if self._canary is not None and not self._is_ordered:
            sample = {"canary": self._canary, "of": self._wanted()}
            self._ids = canary_first(connection, self._ids, **sample, conditions=conditions)

    def _unsaved_runs(self, connection: Connection, now: datetime) -> list[str]:
        """Return the runs that were killed or failed while writing: they may have written newer rows."""
        return [] if self._plan.include_superseded else unsaved_runs(connection, now)

    def _but_of_unsaved_runs(self, connection: Connection) -> list[ColumnElement[bool]]:
        """Count the letters that are left to such runs, and return the condition that leaves them out."""
        owners = self._unsaved_runs(connection, self._began)
        if not owners:
            return []
        theirs = letters.c.id.in_(select(letter_claims.c.letter_id).where(letter_claims.c.owner.in_(owners)))
        counted = select(func.count()).select_from(letters).where(theirs, *self._conditions(self._plan.chosen))
        self._held_by_run = int(connection.execute(counted).scalar_one())
        return [~theirs]

    def _of_superseded(self, connection: Connection) -> int:
        """Return how many letters match that are left out because their key was written since."""
        if self._plan.include_superseded:
            return 0
        left_out = self._plan.chosen.but(superseded=True).where()
        if self._superseded:
            left_out |= self._plan.chosen.where() & in_ids(letters.c.id, self._superseded)
        counted = select(func.count()).select_from(letters).where(left_out, *self._due())
        return int(connection.execute(counted).scalar_one())

    def _of_others(self, connection: Connection) -> dict[str, int]:
        """Return how many letters match that are left out, by the pipeline that they belong to."""
        plan, pipeline = self._plan, letters.c.pipeline_name
        if plan.chosen == plan.matched:
            return {}
        foreign = [*self._conditions(plan.matched), pipeline.not_in(plan.chosen.pipelines)]
        rows = connection.execute(select(pipeline, func.count()).where(*foreign).group_by(pipeline))
        return {row[0]: row[1] for row in rows}

    def _refuse_foreign(self) -> None:
        plan = self._plan
        if plan.any_pipeline or plan.matched.pipeline is not None:
            return
        if plan.matched.ids is not None:
            must_be_its_own(self._target, self._others)
        elif self._target.pipeline is None:
            must_be_one_pipeline(self._by_pipeline)

    def _conditions(self, chosen: Filter) -> list[ColumnElement[bool]]:
        if not self._plan.include_superseded:
            chosen = chosen.but(superseded=False)
            if self._superseded:
                return [chosen.where(), *self._due(), ~in_ids(letters.c.id, self._superseded)]
        return [chosen.where(), *self._due()]

    def _due(self) -> list[ColumnElement[bool]]:
        return [] if self._plan.schedule is None else [self._plan.schedule.due(self._began)]

    def _batches(self, take: Callable[[list[int]], list[Letter]]) -> Iterable[list[Letter]]:
        place = 0
        self._progress(0, self._wanted())
        while place < len(self._ids):
            size = self._size()
            if size <= 0:
                return
            batch = take(list(self._ids[place : place + size]))
            place += size
            if batch:
                yield batch
                self._progress(self._tally.attempted, self._wanted())

    def _size(self) -> int:
        """Wait until letters may be sent, and return how many to take next."""
        size = min(self._plan.batch, self._wanted() - self._tally.attempted)
        if self._canary is not None and self._tally.attempted < self._canary:
            size = min(size, self._canary - self._tally.attempted)
        return self._pace.allow(size)

    def _wanted(self) -> int:
        return len(self._ids) if self._plan.limit is None else min(len(self._ids), self._plan.limit)

    def _read(self, ids: list[int]) -> list[Letter]:
        return _in_order(self._database.read(lambda connection: fetch(connection, ids)))

    def _claim(self, ids: list[int]) -> list[Letter]:
        taken = self._database.write(lambda connection: self._take(connection, ids))
        if self._is_ordered and taken.held:
            taken = self._wait_for_older(ids, taken)
        self._held.update(taken.held)
        self._count_left_out(taken)
        return taken.batch

    def _wait_for_older(self, ids: list[int], taken: _ClaimedLetters) -> _ClaimedLetters:
        """Wait until no other replay has one of the letters: it may hold an older record of a row of this batch."""
        ends = time.monotonic() + self._plan.lease + 1
        while taken.held:
            if time.monotonic() >= ends:
                raise LetterError(
                    f"another replay has {len(taken.held)} of these letters in work, and their keys are not known; "
                    "newer records could be overwritten. Run it again when the other replay has ended"
                )
            held, batch = set(taken.held), [letter.id for letter in taken.batch]
            self._database.write(lambda connection, batch=batch: self._claims.release(connection, batch))  # type: ignore[misc]
            time.sleep(min(_LOOK_AGAIN, self._plan.lease / 4))
            taken = self._database.write(lambda connection: self._take(connection, ids))
            if set(taken.held) != held:
                ends = time.monotonic() + self._plan.lease + 1
        return taken

    def _take(self, connection: Connection, ids: Sequence[int]) -> _ClaimedLetters:
        """Claim what is free of these letters, and still to be sent."""
        if not ids:
            return _ClaimedLetters()
        self._claimed = time.monotonic(), time.time()
        now = self._database.dialect.now(connection)
        unsaved = self._unsaved_runs(connection, now)
        mine = self._claims.take(connection, ids, but=unsaved)
        # Another replay may have claimed a letter of the same key: of two that write one row, the older might be last.
        holding = [*unsaved, *living_owners(connection, now)]
        contested = held_siblings(connection, mine, self._claims.owner, now, holding)
        # Another replay may have decided them between our look and our claim, or tried them and escalated them.
        last = letters.c.last_reprocess
        untried = or_(last.is_(None), last <= self._began)
        still = (
            select(letters.c.id)
            .where(*self._conditions(self._plan.chosen.but(ids=None)), in_ids(letters.c.id, mine), untried)
            .order_by(letters.c.id)
        )
        fit = set(connection.execute(still.with_for_update()).scalars())
        gone = mine - fit
        free = fit - contested.keys()
        if left := mine - free:
            self._claims.release(connection, list(left))
        held = holders(connection, [one for one in ids if one not in mine])
        held |= {one: until for one, until in contested.items() if one in fit}
        superseded = self._superseded_of(connection, gone)
        return _ClaimedLetters(_in_order(fetch(connection, sorted(free))), held, superseded, len(gone) - superseded)

    def _superseded_of(self, connection: Connection, gone: Collection[int]) -> int:
        """Return how many of these letters are still open, and left out because their row was written since."""
        if not gone or self._plan.include_superseded:
            return 0
        newer = letters.c.superseded_at.is_not(None) & letters.c.status.in_(OPEN)
        counted = select(func.count()).select_from(letters).where(in_ids(letters.c.id, gone), newer)
        return int(connection.execute(counted).scalar_one())

    def _count_left_out(self, taken: _ClaimedLetters) -> None:
        self._tally.superseded += taken.superseded
        self._tally.decided += taken.decided

    def _take_over(self) -> None:
        """See to the letters that were in other hands: a replay that lives renews its claims, a dead one does not."""
        ends = time.monotonic() + self._plan.lease + 1
        while self._held and time.monotonic() < ends and self._tally.attempted < self._wanted():
            known = dict(self._held)
            free = self._size()
            taken = self._database.write(
                lambda connection, known=known, free=free: self._take(  # type: ignore[misc]
                    connection, sorted(known)[:free]
                )
            )
            self._count_left_out(taken)
            others = taken.held
            for one in sorted(known)[:free]:
                if one not in others:
                    del self._held[one]
                elif others[one] > known[one]:
                    self._alive += 1
                    del self._held[one]
            if taken.batch:
                self._send(taken.batch)
                self._progress(self._tally.attempted, self._wanted())
                if self._canary_failed():
                    break
            if self._held.keys() == known.keys():  # nothing moved
                time.sleep(min(_LOOK_AGAIN, self._plan.lease / 4))
        self._alive += len(self._held)

    # ── what becomes of it ────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, batch: list[Letter]) -> None:
        batch = self._still_claimed(batch)
        if not batch:
            return
        try:
            answers = self._try(batch)
        except TargetFailed as failed:
            if failed.answered:
                self._mark([letter for letter, _ in failed.answered], [answer for _, answer in failed.answered])
            raise
        self._mark(batch, answers)

    def _still_claimed(self, batch: list[Letter]) -> list[Letter]:
        """Return the letters that no other replay has taken since they were claimed, if that may have happened.

        A process may stop for longer than its lease between its claim and its sending.
        """
        if max(time.monotonic() - self._claimed[0], time.time() - self._claimed[1]) < self._plan.lease / 2:
            return batch
        ids = [letter.id for letter in batch]
        ours = self._database.write(lambda connection: self._claims.keep(connection, ids))
        self._held.update({one: self._began for one in ids if one not in ours})
        return [letter for letter in batch if letter.id in ours]

    def _mark(self, batch: Sequence[Letter], given: Sequence[TargetAnswer]) -> None:
        answers = self._note_outcomes(batch, given)
        missed = self._database.write(
            lambda connection: mark(
                connection,
                answers,
                ours=self._claims.release(connection, [letter.id for letter in batch]),
                schedule=self._plan.schedule,
                note=self._plan.note,
                now=self._database.dialect.now(connection),
                target=self._target,
                dialect=self._database.dialect,
                stored_texts=self._stored_texts,
                masks=self._masks,
            )
        )
        self._tally.seen_meanwhile += len(missed)
        self._tally.became.subtract(answer.became for _, answer in missed)

    def _try(self, batch: list[Letter]) -> list[TargetAnswer]:
        self._sent = batch
        self._pace.sent(len(batch))
        refused = {letter.id: reason for letter in batch if (reason := why_not_sent(letter)) is not None}
        sent = [letter for letter in batch if letter.id not in refused]
        answers = iter(self._answers(sent) if sent else ())
        return [
            TargetAnswer(LetterOutcome.FAILED, refused[letter.id]) if letter.id in refused else next(answers)
            for letter in batch
        ]

    def _answers(self, sent: list[Letter]) -> list[TargetAnswer]:
        try:
            answers = self._target.try_all(sent, dry_run=self._dry)
        except SystemExit as ended:
            if isinstance(ended.code, str):  # it is printed
                is_read = all(self._redactor.can_read(letter.payload) for letter in sent)
                hidden = self._redactor.text(ended.code, [letter.payload for letter in sent])
                ended.code = hidden if is_read or not self._redactor.fields else MASK
            raise
        if not self._redactor.fields:
            return answers
        return [
            answer
            if answer.reason is None or self._redactor.can_read(letter.payload)
            else replace(answer, reason=_UNREAD)
            for letter, answer in zip(sent, answers, strict=True)
        ]

    def _note_outcomes(self, batch: Sequence[Letter], answers: Sequence[TargetAnswer]) -> list[Answered]:
        answered = [
            (letter, answer if answer.reason is None else self._storable(letter, answer, answer.reason))
            for letter, answer in zip(batch, answers, strict=True)
        ]
        for letter, answer in answered:
            self._tally.add(letter, answer)
        self._database.read(lambda connection: self._unknown.add(connection, answered, stored_texts=self._stored_texts))
        return answered

    def _storable(self, letter: Letter, answer: TargetAnswer, reason: str) -> TargetAnswer:
        message = self._redactor.text(reason, letter.payload, rows=answer.rows)
        return replace(answer, reason=storable(message), rows=())

    def _canary_failed(self) -> bool:
        tally, canary = self._tally, self._canary
        if canary is None or tally.attempted > canary or not tally.failed:
            return False
        tally.stopped = f"canary: {tally.failed} of the first {tally.attempted} failed, the rest was not touched"
        if self._plan.canary is None:
            tally.stopped += "; to send all of them anyway: canary=0 (--no-canary)"
        return True

    @contextmanager
    def _reporting_progress(self) -> Iterator[None]:
        try:
            yield
        except TargetFailed as failed:
            tally = self._tally
            message = self._redactor.text(str(failed), [letter.payload for letter in self._sent], rows=failed.rows)
            if self._redactor.fields and not all(self._redactor.can_read(letter.payload) for letter in self._sent):
                message = f"{type(failed.error).__name__}: {failed.verdict.reason}"
            kept = f"{tally.reprocessed:,} letters were reprocessed and {tally.failed:,} failed again before"
            tally.stopped = f"{message}; {kept if not self._dry else 'a dry run'}, the rest stays as it was"
            raise ReplayStopped(tally.stopped, kind=failed.verdict.kind, report=self.report()) from failed.error

    def report(self) -> ReplayReport:
        """Return the report of the replay so far."""
        tally = self._tally
        return ReplayReport(
            dry_run=self._dry,
            selected=len(self._ids),
            attempted=tally.attempted,
            reprocessed=tally.reprocessed,
            failed_again=tally.failed,
            discarded=tally.became[LetterOutcome.DISCARDED],
            decided=tally.decided,
            held=self._alive,
            held_by_run=self._held_by_run,
            seen_meanwhile=tally.seen_meanwhile,
            rehearsed=not self._dry or self._target.rehearses,
            stopped=tally.stopped,
            by_cause=tuple(sorted(tally.causes.values(), key=lambda cause: -cause.count)),
            selected_by_cause=dict(self._by_cause),
            selected_by_pipeline=dict(self._by_pipeline),
            selected_by_target=dict(self._by_target),
            other_pipelines=self._others,
            superseded=tally.superseded_before + tally.superseded + tally.became[LetterOutcome.SUPERSEDED],
            superseded_before=tally.superseded_before,
            key_unknown=self._unknown.count,
            canary=self._canary,
        )


def _in_order(found: list[Letter]) -> list[Letter]:
    return sorted(found, key=lambda letter: (letter.last_seen, letter.id))
