"""`Timeout`: how long one attempt, and each phase of it, may take."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.policy import option_checks


@dataclass(frozen=True, slots=True)
class Timeout:
    """Limits of one attempt, in seconds; None for no limit.

    total    the whole attempt, its body included: for HTTP adapters, async functions and functions that take `timeout`
    connect  until the connection is there, name resolution and TLS included, and for a place in the client's pool;
             for HTTP adapters
    read     each wait for bytes, and for bytes to be taken; for HTTP adapters
    """

    total: float | None = None
    connect: float | None = None
    read: float | None = None

    def __post_init__(self) -> None:
        for name in ("total", "connect", "read"):
            value = getattr(self, name)
            if value is None:
                continue
            object.__setattr__(self, name, option_checks.seconds(name, value, above=0))
            if self.total is not None and value > self.total:
                raise ValueError(f"{name} of {value:g} s is longer than the total of {self.total:g} s")
        if self.total is self.connect is self.read is None:
            raise ValueError("a Timeout needs total, connect or read")

    def phase(self, name: str, left: float | None) -> float | None:
        """Return the limit of a phase of an HTTP request.

        Args:
            name: "connect", "pool", "read" or "write".
            left: seconds left for the whole request; None for no limit.
        """
        limits = (self.connect if name in ("connect", "pool") else self.read, left)
        return min((limit for limit in limits if limit is not None), default=None)


def timeout_of(value: object) -> Timeout | None:
    """Return the limits that an option gives: a number of seconds is the total."""
    if value is None or isinstance(value, Timeout):
        return value
    if option_checks.finite(value):
        return Timeout(total=option_checks.seconds("timeout", value, above=0))  # type: ignore[arg-type]  # it is a number
    raise ValueError(f"timeout must be a number of seconds or a redrive.Timeout, not {option_checks.shown(value)}")
