"""A limit on the names in metrics, so that a program that generates names does not fill the memory of Prometheus.

The names that are kept are: pipelines and flows with the newest runs, services with the most calls, and otherwise those
with the most letters, tasks and alerts. Gauges of the other names are added up under `other`. Counters of the others
are left out: a sum would decrease when a service moves out of it.
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
"""Variable: the maximum number of names of each kind."""
OTHER = "other"
_MOST = 1_000

Key = TypeVar("Key", bound=tuple[str, ...])


def most_names() -> int:
    """Return the limit from the environment, or the default."""
    limit = os.environ.get(VARIABLE, "")
    if not limit:
        return _MOST
    if not limit.isdecimal() or int(limit) < 1:
        raise ConfigError(f"{VARIABLE} must be a whole number of 1 or more, not {limit!r}")
    return int(limit)


def limit_names(figures: Figures, most: int) -> Figures:
    """Return the figures with at most `most` names of each kind."""
    pipelines, flows = _newest(figures.pipelines, most), _newest(figures.flows, most)
    calls = Counter({window.service: window.calls for window in figures.services})
    calls.update({state.service: 0 for state in figures.circuits})
    services = _largest(calls, most)
    letters = Counter({by_pipeline.pipeline: sum(by_pipeline.by_status.values()) for by_pipeline in figures.letters})
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
        services=tuple(window for window in figures.services if window.service in services),
        endpoints=tuple(sums for sums in figures.endpoints if sums.service in services),
        circuits=tuple(state for state in figures.circuits if state.service in services),
        letters=_letters(figures.letters, with_letters),
        tasks=_renamed(figures.tasks, 0, with_tasks),
        alerts=_renamed(figures.alerts, 3, with_alerts),
    )


def _newest(runs: tuple[RunFigures, ...], most: int) -> tuple[RunFigures, ...]:
    return tuple(sorted(runs, key=lambda run: run.started_at, reverse=True)[:most])


def _largest(counts: Mapping[str, int], most: int) -> set[str]:
    return set(sorted(counts, key=lambda name: (-counts[name], name))[:most])


def _by_name(counts: Mapping[Any, int], position: int) -> Counter[str]:
    totals: Counter[str] = Counter()
    for key, count in counts.items():
        totals[key[position]] += count
    return totals


def _renamed(counts: Mapping[Key, int], position: int, kept: set[str]) -> Mapping[Key, int]:
    totals: Counter[Any] = Counter()
    for key, count in counts.items():
        totals[key if key[position] in kept else (*key[:position], OTHER, *key[position + 1 :])] += count
    return totals


def _letters(letters: Iterable[LetterFigures], kept: set[str]) -> tuple[LetterFigures, ...]:
    listed = list(letters)
    others = [figures for figures in listed if figures.pipeline not in kept]
    if not others:
        return tuple(listed)
    by_status: Counter[str] = Counter()
    for figures in others:
        by_status.update(figures.by_status)
    oldest = min((figures.oldest_pending for figures in others if figures.oldest_pending is not None), default=None)
    together = LetterFigures(pipeline=OTHER, by_status=by_status, oldest_pending=oldest)
    return (*(figures for figures in listed if figures.pipeline in kept), together)
