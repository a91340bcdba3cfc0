"""How far consumers are behind, asked of a probe that a user writes.

A probe is a function without arguments, or an object with such a method `lag`, that answers one `Lag` or several:

    from redrive.alerts.facts.lag import Lag

    def billing() -> Lag:
        return Lag(consumer="billing", messages=newest_offset() - committed_offset())

`redrive.toml` names it as `redrive run` names a pipeline: `lags = ["probes.py:billing"]` in [alerts]. The watch asks it
at every look, in a thread of its own, and goes on without one that raises or hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from redrive.alerts.facts.snapshot import Lag
from redrive.config import ConfigError

__all__ = ["BadProbe", "Lag", "LagProbe", "Probe", "probes"]

Answer = Lag | Iterable[Lag]
_MOST = 1e15


@runtime_checkable
class LagProbe(Protocol):
    """Tells how far one or more consumers are behind."""

    def lag(self) -> Answer:
        """How far, now. Bring a timeout: who does not answer is not asked again until he has."""


Probe = Callable[[], tuple[Lag, ...]]


class BadProbe(ConfigError):
    """Something that is no probe, or an answer that is no lag."""


def probes(names: Iterable[str], load: Callable[[str], Any]) -> Mapping[str, Probe]:
    """The probes of these names; `load` finds what `FILE_OR_MODULE:NAME` means."""
    return {name: _probe(name, load(name)) for name in names}


def _probe(name: str, found: object) -> Probe:
    is_object = isinstance(found, LagProbe) and not isinstance(found, type)
    ask: Any = found.lag if is_object else found  # type: ignore[attr-defined]
    if isinstance(found, type) or not callable(ask):
        what = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise BadProbe(f"{name} is {what}, not a probe: that is a function without arguments, or has a method `lag`")
    return lambda: _checked(name, ask())


def _checked(name: str, answer: Any) -> tuple[Lag, ...]:
    listed = (answer,) if isinstance(answer, Lag) or not isinstance(answer, Iterable) else tuple(answer)
    for one in listed:
        if not isinstance(one, Lag):
            raise BadProbe(f"{name} answered a {type(one).__name__}, not a redrive.types.Lag")
        if not isinstance(one.consumer, str) or not one.consumer.isprintable() or not one.consumer.strip():
            raise BadProbe(f"{name} answered a lag of a consumer whose name is no text that can be shown")
        if one.messages is None and one.seconds is None:
            raise BadProbe(f"{name} knows neither messages nor seconds of {one.consumer}")
        if any(value is not None and not _is_amount(value) for value in (one.messages, one.seconds)):
            raise BadProbe(f"{name} answered a lag of {one.consumer} that is no number from 0 up")
    return listed


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST
