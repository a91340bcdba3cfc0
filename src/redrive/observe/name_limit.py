"""A bound on the names in metrics: a program that makes up names must not fill the memory of Prometheus.

Of pipelines and flows those with the newest runs are kept, of services those with the most calls, of the rest those
with the most letters, tasks and alerts. Gauges of the others are added up under `other`. Counters of the others are
left out: a sum would go back when a service moves out of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from redrive.config import ConfigError
from redrive.observe.figures import Figures, LetterFigures, RunFigures

VARIABLE = "REDRIVE_MAX_METRIC_NAMES"
"""How many names of each kind are told apart."""
OTHER = "other"
_MOST = 1_000

Key = TypeVar("Key", bound=tuple[str, ...])


def most_names() -> int:
    """Return the limit that is set."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return _MOST
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"{VARIABLE} must be a whole number of 1 or more, not {given!r}")
    return int(given)


def bounded(figures: Figures, most: int) -> Figures:
    """Return the figures with at most so many names of each kind."""
    pipelines, flows = _newest(figures.pipelines, most), _newest(figures.flows, most)
    calls = Counter({one.service: one.calls for one in figures.services})
    calls.update({one.service: 0 for one in figures.circuits})
    services = _largest(calls, most)
    letters = Counter({one.pipeline: sum(one.by_status.values()) for one in figures.letters})
    with_letters = _largest(letters, most)
    with_tasks = _largest(_by_name(figures.tasks, 0), most)
    subjects = _by_name(figures.alerts, 3)
    with_alerts = _largest(subjects, most)
    left_out = {
        "pipeline": max(len(figures.pipelines) - len(pipelines), len(letters) - len(with_letters)),
        "flow": len(figures.flows) - len(flows),
        "service": len(calls) - len(services),
        "subject": len(subjects) - len(with_alerts),
    }
    return replace(
        figures,
        left_out=left_out,
        pipelines=pipelines,
        flows=flows,
        services=tuple(one for one in figures.services if one.service in services),
        endpoints=tuple(one for one in figures.endpoints if one.service in services),
        circuits=tuple(one for one in figures.circuits if one.service in services),
        letters=_letters(figures.letters, with_letters),
        tasks=_renamed(figures.tasks, 0, with_tasks),
        alerts=_renamed(figures.alerts, 3, with_alerts),
    )


def _newest(runs: tuple[RunFigures, ...], most: int) -> tuple[RunFigures, ...]:
    return tuple(sorted(runs, key=lambda run: run.started_at, reverse=True)[:most])


def _largest(counts: Mapping[str, int], most: int) -> set[str]:
    return set(sorted(counts, key=lambda name: (-counts[name], name))[:most])


def _by_name(counts: Mapping[Any, int], place: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for key, count in counts.items():
        found[key[place]] += count
    return found


def _renamed(counts: Mapping[Key, int], place: int, kept: set[str]) -> Mapping[Key, int]:
    found: Counter[Any] = Counter()
    for key, count in counts.items():
        found[key if key[place] in kept else (*key[:place], OTHER, *key[place + 1 :])] += count
    return found


def _letters(letters: Iterable[LetterFigures], kept: set[str]) -> tuple[LetterFigures, ...]:
    listed = list(letters)
    others = [one for one in listed if one.pipeline not in kept]
    if not others:
        return tuple(listed)
    by_status: Counter[str] = Counter()
    for one in others:
        by_status.update(one.by_status)
    oldest = min((one.oldest_pending for one in others if one.oldest_pending is not None), default=None)
    together = LetterFigures(pipeline=OTHER, by_status=by_status, oldest_pending=oldest)
    return (*(one for one in listed if one.pipeline in kept), together)
