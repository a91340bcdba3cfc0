"""Which parameters mean the same work: a parameter at its default is as if it were not there. Pure.

So a run from before the flow had some parameter is the run of the work that has the parameter at its default now.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from redrive.store.encoding import encode

NO_PARAMS = "{}"
"""Without parameters, nothing tells the work of a run from that of the next one."""
_MOST = 1_000  # texts to look for: all combinations of nine parameters that are at their defaults


def written(params: Mapping[str, Any]) -> str:
    """Parameters as the store has them."""
    return encode(dict(sorted(params.items())))


def spellings(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how the store may have these parameters: as they are first, then without some that are at their defaults.

    defaults  of the flow's parameters that have one
    """
    given = sorted(params.keys() & defaults.keys())
    at_default = [name for name in given if encode(defaults[name]) == encode(params[name])]
    return tuple(itertools.islice(_without_some(params, at_default), _MOST))


def _without_some(params: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    for count in range(len(names) + 1):
        for left_out in itertools.combinations(names, count):
            yield written({name: value for name, value in params.items() if name not in left_out})
