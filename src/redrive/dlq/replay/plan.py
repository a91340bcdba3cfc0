"""The plan of a replay: which letters are sent, how many at a time, and why a letter cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redrive.dlq.filters import Filter
from redrive.dlq.insert.row_builder import REDACTED
from redrive.dlq.redact import has_mask
from redrive.dlq.replay.claims import LEASE
from redrive.dlq.replay.schedule import Schedule
from redrive.errors import LetterError
from redrive.model.letters import ARGUMENT_MISSING, BODY_MISSING, INCOMPLETE, OPEN, ErrorType, Letter
from redrive.policy import option_checks

BATCH = 500
CANARY = 10
"""Letters that a large replay sends first by default."""
CANARY_ABOVE = 100
"""Letters above which a replay is large."""
_LONGEST_LEASE = 365 * 86_400
_MASKED = "values of the record were masked before it was stored; edit all of them before it is replayed"
_WITHOUT_BODY = "the record has no body: edit it to have one before it is replayed"
_WITHOUT_ARGUMENT = f"edit the arguments, and remove {ARGUMENT_MISSING}, before it is replayed"

Progress = Callable[[int, int], None]
"""Called with how many letters are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What to replay, and how far to go.

    chosen        the letters to send
    matched       the letters that match the caller's filters, those of other pipelines included
    any_pipeline  whether the target takes the letters of every pipeline
    include_superseded  whether letters are sent whose key was written since
    canary        None for the default: 10 where an operator replays more than 100 letters; 0 for none
    rate          letters per second at most
    """

    chosen: Filter
    matched: Filter
    any_pipeline: bool = False
    include_superseded: bool = False
    limit: int | None = None
    canary: int | None = None
    rate: float | None = None
    batch: int = BATCH
    schedule: Schedule | None = None
    lease: float = LEASE
    note: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("canary", 0), ("batch", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise LetterError(f"{name} must be a whole number of {least} or more, not {value!r}")
        if not (option_checks.finite(self.lease) and 0 < self.lease <= _LONGEST_LEASE):
            raise LetterError(
                f"lease must be a number of seconds above 0 and at most {_LONGEST_LEASE:,} (a year), "
                f"not {option_checks.shown(self.lease)}"
            )
        if closed := set(self.chosen.status or ()) - set(OPEN):
            raise LetterError(f"a letter that is {min(closed)} is not open; reopen it before it is replayed")

    def canary_size(self, wanted: int, *, dry_run: bool) -> int | None:
        """Return how many letters to send first, of those that are wanted.

        A dry run changes nothing, and in a scheduled replay failures are expected and escalate nothing: neither has a
        canary unless the caller asks for one.
        """
        if self.canary is not None:
            return self.canary or None
        return CANARY if wanted > CANARY_ABOVE and not dry_run and self.schedule is None else None


def why_not_sent(letter: Letter) -> str | None:
    """Return why the record of a letter is not what was received; None where it may be sent."""
    record = letter.payload
    if (letter.context or {}).get(REDACTED) and has_mask(record):
        return _MASKED
    if (incomplete := (letter.context or {}).get(INCOMPLETE)) and not letter.edited:
        return f"{incomplete}; edit it before it is replayed"
    if letter.error_type != ErrorType.CALL or not isinstance(record, Mapping):
        return None
    if missing := record.get(ARGUMENT_MISSING):
        return f"{missing}; {_WITHOUT_ARGUMENT}"
    if record.get("body") is not None:
        return None
    # An edit that removes the note has not given a body yet.
    received = letter.record if isinstance(letter.record, Mapping) else {}
    if missing := record.get(BODY_MISSING) or received.get(BODY_MISSING):
        return f"{missing}; {_WITHOUT_BODY}"
    # Letters of older versions have no note that a form with files is missing.
    return _WITHOUT_BODY if str(record.get("content_type")).startswith("multipart/") else None
