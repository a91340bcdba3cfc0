"""Pickling: the parts of a service's core, and how a core is sent to another process (as the options that make it).

cloudpickle, which Ray, Dask, Spark and joblib use, takes a decorated function apart down to the objects that its
closure refers to. Each of these is pickled as an attribute of its core, so that they belong together where it is
unpickled.
"""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.calls.core import ServiceCore


class CorePart:
    """An object that belongs to one core; `path` is the attribute path by which it is reached from the core."""

    path: str
    owner: weakref.ref[ServiceCore] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        core = None if self.owner is None else self.owner()
        if core is None:
            raise TypeError(f"cannot pickle a {type(self).__name__} whose service is gone")
        return _part_of, (core, self.path)


def _part_of(core: ServiceCore, path: str) -> Any:
    return operator.attrgetter(path)(core)


class Latencies(list[float], CorePart):
    """Seconds that successful calls took and that are not counted yet."""

    path = "counters.latencies"
    endpoint: str | None = None
    """The endpoint; None where endpoints are not counted separately."""

    def __reduce__(self) -> tuple[Any, ...]:
        core = None if self.owner is None else self.owner()
        if core is None or self.endpoint is None:
            return CorePart.__reduce__(self)
        return _latencies_of, (core, self.endpoint)


def _latencies_of(core: ServiceCore, endpoint: str) -> Latencies:
    return core.counters.latencies_of(endpoint)


# The cores of this process that were pickled here, and those that came from elsewhere, by their token. The latter are
# kept for the next task that brings them: a breaker that is made for every task would never open.
_sent: weakref.WeakValueDictionary[str, ServiceCore] = weakref.WeakValueDictionary()
_received: OrderedDict[str, ServiceCore] = OrderedDict()
_MOST_RECEIVED = 64


def sent(token: str, core: ServiceCore) -> None:
    """Note a core that is pickled."""
    _sent[token] = core


def received(token: str, make: Callable[..., ServiceCore], options: dict[str, Any]) -> ServiceCore:
    """Return the core of that token in this process, made by its options where there is none."""
    core = _sent.get(token) or _received.pop(token, None)
    if core is None:
        core = make(options)
        core.token = token
    if core is not _sent.get(token):
        _received[token] = core
        while len(_received) > _MOST_RECEIVED:
            _received.popitem(last=False)
    return core
