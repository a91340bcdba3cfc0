"""Tally: what a replay counts while it runs, for its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from redrive.dlq.fingerprint import fingerprint
from redrive.dlq.replay.target import LetterOutcome, TargetAnswer
from redrive.model.letters import FailedCause, Letter


@dataclass(slots=True)
class ReplayCounts:
    """The report as it grows."""

    attempted: int = 0
    became: Counter[LetterOutcome] = field(default_factory=Counter)
    seen_meanwhile: int = 0
    superseded_before: int = 0
    superseded: int = 0
    """Left out since the replay began."""
    decided: int = 0
    stopped: str | None = None
    causes: dict[str, FailedCause] = field(default_factory=dict)

    @property
    def reprocessed(self) -> int:
        """Letters whose record was written."""
        return self.became[LetterOutcome.REPROCESSED]

    @property
    def failed(self) -> int:
        """Letters that failed again."""
        return self.became[LetterOutcome.FAILED]

    def add(self, letter: Letter, answer: TargetAnswer) -> None:
        """Count what became of a letter."""
        self.attempted += 1
        self.became[answer.became] += 1
        if answer.became is LetterOutcome.FAILED:
            self._add_failure(letter, answer.reason or "")

    def _add_failure(self, letter: Letter, reason: str) -> None:
        cause = fingerprint(letter.error_type, reason)
        before = self.causes.get(cause.value)
        self.causes[cause.value] = FailedCause(
            fingerprint=cause.value,
            message=cause.template,
            count=before.count + 1 if before else 1,
            sample=before.sample if before else reason,
        )
