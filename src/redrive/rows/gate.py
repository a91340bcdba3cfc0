"""The gate of a pipeline, a public class: which share of rejected rows raises an alert or aborts a run."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from redrive.model.runs import Tier
from redrive.policy import option_checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Shares of rejected rows that raise an alert or abort a run, and the minimum number of rows of a run.

    Rows are input rows: a record that a transform splits into several rows counts as one.

    warn         from this share on, a P3 alert; below it, a log line
    page         above this share, the on-call is paged (P1)
    abort        above this share, the run is aborted
    least        rows to read before a run is aborted half-way
    page_least   rejected rows below which the on-call is not paged
    abort_least  rows to read before a run is aborted, also at its end: 1 of 4 rows is not a meaningful share
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
        """Return whether a run must be aborted: enough rows were read, and too many of them were rejected.

        ended  whether all rows were read
        """
        return (ended or read >= self.least) and self.judge(rejected, read) is Tier.ABORT

    def has_too_few(self, read: int) -> bool:
        """Return whether a completed run has read too few rows."""
        return self.at_least is not None and read < self.at_least
