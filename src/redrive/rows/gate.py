"""The gate: how many rejected rows are too many."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from redrive.model.runs import Tier
from redrive.policy import option_checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a share of rejected rows means, and how many rows are too few.

    Rows are input rows: of a record that a transform splits, one is rejected, however many rows it would have made.

    warn         from this share on it is a matter for the day (P3); below it, for the log
    page         above it, the on-call is paged (P1)
    abort        above it, the run is aborted
    least        rows to read before a run is aborted half-way
    page_least   rejected rows below which the on-call is not paged
    abort_least  rows to read before a run is aborted, also at its end: 1 of 4 rows is no share to go by
    at_least     rows that a run must have read at its end; with fewer it is aborted, since its source is incomplete
    """

    warn: float = 0.01
    page: float = 0.05
    abort: float = 0.20
    least: int = 1_000
    page_least: int = 20
    abort_least: int = 100
    at_least: int | None = None

    def __post_init__(self) -> None:
        for name in ("warn", "page", "abort"):
            option_checks.share(name, getattr(self, name), zero=True)
        if not self.warn <= self.page <= self.abort:
            raise ValueError(f"warn ≤ page ≤ abort is needed, not {self.warn}, {self.page}, {self.abort}")
        for name in ("least", "page_least", "abort_least"):
            option_checks.count(name, getattr(self, name), least=1)
        if self.at_least is not None:
            option_checks.count("at_least", self.at_least, least=1)

    def judge(self, rejected: int, read: int) -> Tier:
        """Return the tier of this many rejected rows."""
        warn, page, abort = (Fraction(str(share)) * read for share in (self.warn, self.page, self.abort))
        if rejected > abort and read >= self.abort_least:
            return Tier.ABORT
        if rejected > page and rejected >= self.page_least:
            return Tier.P1
        return Tier.P3 if rejected and rejected >= warn else Tier.LOG

    def stops(self, rejected: int, read: int, *, ended: bool) -> bool:
        """Return whether a run is to be aborted: enough was read to judge, and too much of it was rejected.

        ended  whether all rows were read
        """
        return (ended or read >= self.least) and self.judge(rejected, read) is Tier.ABORT

    def has_too_few(self, read: int) -> bool:
        """Return whether a run that is at its end has read too few rows."""
        return self.at_least is not None and read < self.at_least
