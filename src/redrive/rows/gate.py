"""The gate: how many rejected rows are too many."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from redrive.policy import checks
from redrive.runs import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a share of rejected rows means.

    warn   from this share on it is a matter for the day (P3); below it, for the log
    page   above it, somebody is called (P1)
    abort  above it, the run stops
    least  rows to see before a run is stopped half-way; at its end every run is judged
    """

    warn: float = 0.01
    page: float = 0.05
    abort: float = 0.20
    least: int = 1_000

    def __post_init__(self) -> None:
        for name in ("warn", "page", "abort"):
            checks.share(name, getattr(self, name), zero=True)
        if not self.warn <= self.page <= self.abort:
            raise ValueError(f"warn ≤ page ≤ abort is needed, not {self.warn}, {self.page}, {self.abort}")
        checks.count("least", self.least, least=1)

    def judge(self, rejected: int, read: int) -> Tier:
        """The tier of so many rejected rows."""
        warn, page, abort = (Fraction(str(share)) * read for share in (self.warn, self.page, self.abort))
        if rejected > abort:
            return Tier.ABORT
        if rejected > page:
            return Tier.P1
        return Tier.P3 if rejected and rejected >= warn else Tier.LOG

    def stops(self, rejected: int, read: int, *, ended: bool) -> bool:
        """Whether a run is to be stopped: enough was seen to judge, and it is too much.

        ended  whether all rows were seen
        """
        return (ended or read >= self.least) and self.judge(rejected, read) is Tier.ABORT
