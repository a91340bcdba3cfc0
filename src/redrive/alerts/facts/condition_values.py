"""The numbers that conditions of the settings are about: of a metric, of a query, or of a probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from redrive.alerts.config.settings import ConditionSettings
from redrive.alerts.facts.external_databases import finite, read_number
from redrive.alerts.facts.probes import Unanswered
from redrive.alerts.facts.snapshot import Figure
from redrive.store.database import Database

_UNDER = "conditions:"


class ConditionFigures:
    """Asks for the numbers, each no more often than its condition says, and keeps the last ones.

    probes  functions that return a number, by the name that the settings have for them
    """

    def __init__(
        self,
        database: Database,
        conditions: Mapping[str, ConditionSettings],
        probes: Mapping[str, Callable[[], object]],
    ) -> None:
        self._database, self._conditions = database, conditions
        # Without the address that a query needs, nothing can be asked here.
        self._questions = {
            name: partial(read_number, one.url, one.query)
            for name, one in conditions.items()
            if one.query is not None and one.url
        } | {
            name: partial(_call, one.probe, probes[one.probe])
            for name, one in conditions.items()
            if one.probe is not None and one.probe in probes
        }
        self._asked: dict[str, datetime] = {}
        self._last: dict[str, Any] = {}

    def to_ask(self, now: datetime) -> dict[str, Callable[[], float | None]]:
        """Return the questions that are due, by name."""
        due: dict[str, Callable[[], float | None]] = {}
        for name, question in self._questions.items():
            every, asked = timedelta(seconds=self._conditions[name].every), self._asked.get(name)
            if asked is None or not asked <= now < asked + every:
                self._asked[name] = now
                due[f"{_UNDER}{name}"] = question
        return due

    def figures(self, answers: Mapping[str, Any], now: datetime, unknown: dict[str, str]) -> list[Figure]:
        """Return the numbers as they are known now; what could not be measured is added to `unknown`."""
        found = self._metrics()
        for name in self._questions:
            self._last[name] = answers.get(f"{_UNDER}{name}", self._last.get(name))
            if isinstance(self._last[name], Unanswered):
                unknown[f"{_UNDER}{name}"] = self._last[name].reason
            else:
                found.append(Figure(name=name, value=self._last[name]))
        return found

    def _metrics(self) -> list[Figure]:
        wanted = {name: one for name, one in self._conditions.items() if one.metric is not None}
        if not wanted:
            return []
        from redrive.observe.figures import Reader
        from redrive.observe.metric_families import families

        samples = [sample for family in families(Reader(self._database).read(), took=0.0) for sample in family.samples]
        found = []
        for name, one in wanted.items():
            matching = [
                sample.value
                for sample in samples
                if sample.name == one.metric and one.labels.items() <= sample.labels.items()
            ]
            found.append(Figure(name=name, value=sum(matching) if matching else None))
        return found


def _call(name: str, probe: Callable[[], object]) -> float | None:
    answer = probe()
    if answer is None:
        return None
    if isinstance(answer, bool) or not isinstance(answer, int | float | Decimal):
        raise ValueError(f"{name} must return a finite number or None, not {type(answer).__name__}")
    return finite(answer, name)
