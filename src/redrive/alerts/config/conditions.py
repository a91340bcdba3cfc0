"""What `redrive.toml` says of conditions: `[conditions.NAME]`, of one's own or with channels for a built-in one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.config import addresses
from redrive.alerts.config.settings import ConditionSettings
from redrive.alerts.custom import CUSTOM
from redrive.alerts.facts.queries import ONE_QUERY, is_one_query
from redrive.config.located import Located, listed, nearest, shown
from redrive.config.value_kinds import duration, text
from redrive.model.alerts import Severity

CONDITION_KEYS = (
    *("metric", "query", "url", "probe", "above", "below", "severity", "title", "persist", "every", "pipeline"),
    "channels",
)
_BUILT_IN = (*CONDITIONS, CUSTOM)
_RESERVED = ("test",)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
_METRIC = re.compile(r"(?P<name>redrive_[a-z0-9_]{1,100})(?:\{(?P<labels>[^{}]{0,500})\})?")
_LABEL = re.compile(r'\s*(?P<name>[a-z_]{1,50})\s*=\s*"(?P<value>[^"\\]{0,200})"\s*(?:,|$)')
_SOURCES = ("metric", "query", "probe")
_MOST = 1e15


def read_condition(
    name: str, at: Located, *, channels: Callable[[Located], tuple[str, ...]], needed: bool
) -> ConditionSettings:
    """One condition.

    channels  reads names of channels
    needed    whether the variables that its address names must be set
    """
    found = at.table(CONDITION_KEYS)
    routed = channels(found["channels"]) if "channels" in found else ()
    if name in _BUILT_IN:
        _check_built_in(at, found)
        return ConditionSettings(channels=routed)
    if name in _RESERVED or not _NAME.fullmatch(name):
        near = nearest(name, _BUILT_IN) if set(found) == {"channels"} else None
        hint = f"did you mean {near!r}?" if near else "use lower-case letters, digits, _ and -"
        raise at.wrong(f"is not a name for a condition; {hint}")
    if set(found) == {"channels"}:
        near = nearest(name, _BUILT_IN)
        raise at.wrong(
            f"is no built-in condition{f'; did you mean {near!r}?' if near else ''}, and has none of {listed(_SOURCES)}"
        )
    above, below = _limits(at, found)
    return ConditionSettings(
        severity=_severity(at, found),
        **_source(at, found, needed=needed),
        above=above,
        below=below,
        title=text(found["title"]) if "title" in found else None,
        persist=duration(found["persist"], zero=True) if "persist" in found else None,
        every=duration(found["every"]) if "every" in found else ConditionSettings().every,
        pipeline=text(found["pipeline"]) if "pipeline" in found else None,
        channels=routed,
    )


def check_metrics(at: Located) -> None:
    """Raise where a condition names a metric that redrive does not have, or that cannot be read here."""
    named = {name: one for name, one in at.table().items() if "metric" in one.table()}
    if not named:
        return
    try:
        from redrive.observe.figures import Figures
        from redrive.observe.metric_families import families
    except ImportError as error:
        raise next(iter(named.values())).at("metric").wrong(f"cannot be read: {error}") from None
    suffix = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",)}
    known = {
        f"{one.name}{end}"
        for one in families(Figures(database="", schema_version=""), took=0.0)
        for end in suffix.get(one.type, ("",))
    }
    for one in named.values():
        metric, _ = _metric(one.at("metric"))
        if metric not in known:
            near = nearest(metric, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise one.at("metric").wrong(f"names an unknown metric {shown(metric, longest=100)}{hint}")


def _check_built_in(at: Located, found: Mapping[str, Located]) -> None:
    for key, one in found.items():
        if key != "channels":
            raise one.wrong("means nothing for a built-in condition, which may only have channels; choose another name")
    if not found:
        raise at.wrong("has no channels")


def _source(at: Located, found: Mapping[str, Located], *, needed: bool) -> dict[str, Any]:
    said = [one for one in _SOURCES if one in found]
    if len(said) != 1:
        raise at.wrong(
            f"must have exactly one of {listed(_SOURCES, last='or')}; it has {listed(said) if said else 'none'}"
        )
    if "url" in found and said != ["query"]:
        raise found["url"].wrong(f"means nothing beside {said[0]}")
    if said == ["metric"]:
        if "every" in found:
            raise found["every"].wrong("means nothing beside metric, which is read at every look")
        metric, labels = _metric(found["metric"])
        return {"metric": metric, "labels": labels}
    if said == ["probe"]:
        return {"probe": addresses.probe(found["probe"])}
    if "url" not in found:
        raise at.wrong("has no url: name the database that is asked")
    query, url = found["query"], found["url"]
    if not is_one_query(text(query)):
        raise query.wrong(ONE_QUERY)
    filled = "" if not needed and url.unset() else addresses.database(url.filled(advice="set it"))
    return {"query": text(query).rstrip("; \n"), "url": filled}


def _metric(at: Located) -> tuple[str, dict[str, str]]:
    found = _METRIC.fullmatch(text(at))
    rest, labels = (found["labels"] or "") if found else "", dict[str, str]()
    while found and rest.strip():
        label = _LABEL.match(rest)
        if label is None or label["name"] in labels:
            found = None
            break
        labels[label["name"]] = label["value"]
        rest = rest[label.end() :]
    if found is None:
        raise at.wrong(
            'must be a metric of redrive\'s, such as \'redrive_letters{pipeline="orders",status="pending"}\''
        )
    return found["name"], labels


def _limits(at: Located, found: Mapping[str, Located]) -> tuple[float | None, float | None]:
    above, below = (_limit(found[name]) if name in found else None for name in ("above", "below"))
    if above is None and below is None:
        raise at.wrong("has neither above nor below")
    if above is not None and below is not None and below > above:
        raise found["below"].wrong("is more than above, so that it would always hold")
    return above, below


def _limit(at: Located) -> float:
    if isinstance(at.value, bool) or not isinstance(at.value, int | float) or not -_MOST <= at.value <= _MOST:
        raise at.wrong("must be a number")
    return float(at.value)


def _severity(at: Located, found: Mapping[str, Located]) -> Severity:
    if "severity" not in found:
        raise at.wrong(f"has no severity: {listed(Severity, last='or')}")
    try:
        return Severity(text(found["severity"]))
    except ValueError:
        raise found["severity"].wrong(f"must be {listed(Severity, last='or')}") from None
