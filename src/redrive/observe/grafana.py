"""A Grafana dashboard and Prometheus alert rules, made from the metric families that a scrape has.

`redrive observe` prints them. Every metric name comes from the families: a dashboard with an unknown name shows
nothing, and a rule with one never fires.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from redrive._internal.optional import require_extra
from redrive.observe.figures import Figures
from redrive.observe.metric_families import families

with require_extra("prometheus"):
    from prometheus_client.metrics_core import Metric

_PREFIX = "redrive_"
_WINDOW = "5m"
_AGE = "_timestamp_seconds"
_UNITS = {"_bytes": "bytes", "_seconds": "s"}
_SUFFIXES = {"counter": "_total", "info": "_info"}
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3


class _AlertRule(NamedTuple):
    name: str
    metric: str
    condition: str
    """PromQL, with the name of the metric as `{metric}`."""
    lasts: str
    severity: str
    summary: str


_RULES = (
    _AlertRule(
        "RedriveNotScraped", "up", "absent({metric})", "10m", "critical", "No process exports metrics of redrive."
    ),
    _AlertRule("RedriveStoreDown", "up", "{metric} == 0", "5m", "critical", "The store of redrive cannot be read."),
    _AlertRule("RedriveNotWatched", "watched", "{metric} == 0", "5m", "critical", "No process runs `redrive watch`."),
    _AlertRule(
        "RedriveMessagesFailed",
        "alert_sends",
        'sum by (channel) ({metric}{{status="failed"}}) > 0',
        "0m",
        "critical",
        "Messages to the channel {{ $labels.channel }} could not be delivered: redrive alerts ls",
    ),
    _AlertRule(
        "RedriveMessagesWaiting",
        "alert_sends",
        'sum by (channel) ({metric}{{status="waiting"}}) > 0',
        "30m",
        "warning",
        "Messages to the channel {{ $labels.channel }} have waited for half an hour.",
    ),
    _AlertRule(
        "RedriveP1NotAcknowledged",
        "alerts",
        'sum by (subject) ({metric}{{urgency="P1", status="open"}}) > 0',
        "1h",
        "warning",
        "A P1 about {{ $labels.subject }} is not acknowledged: redrive alerts ls --urgency P1",
    ),
    _AlertRule(
        "RedriveCircuitOpen",
        "service_circuit",
        'max by (service) ({metric}{{state="open"}}) == 1',
        "15m",
        "warning",
        "The circuit of {{ $labels.service }} is open: redrive services show {{ $labels.service }}",
    ),
)


def known_metrics() -> dict[str, Metric]:
    """Return every metric family, by its name without the prefix."""
    nothing = Figures(database="", schema_version="")
    return {family.name.removeprefix(_PREFIX): family for family in families(nothing, took=0.0)}


def dashboard() -> dict[str, Any]:
    """Return a Grafana dashboard with one panel for each metric, in one row per subject."""
    panels: list[dict[str, Any]] = []
    top = 0
    for about, metrics in _by_subject(known_metrics()).items():
        row = {"type": "row", "title": about, "collapsed": False, "panels": [], "gridPos": _place(top, 0, wide=True)}
        panels.append(row)
        top += 1
        of_row = [_panel(name, metric) for name, metric in metrics.items()]
        for position, panel in enumerate(of_row):
            panels.append({**panel, "gridPos": _place(top + position // _PER_ROW * _HEIGHT, position % _PER_ROW)})
        top += -(-len(of_row) // _PER_ROW) * _HEIGHT
    return {
        "title": "redrive",
        "uid": "redrive",
        "tags": ["redrive"],
        "schemaVersion": 39,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def rules() -> dict[str, Any]:
    """Return Prometheus alert rules for what redrive cannot report itself, and for what is not handled in time."""
    metrics = known_metrics()
    return {"groups": [{"name": "redrive", "rules": [_rule(rule, metrics) for rule in _RULES]}]}


def rules_yaml() -> str:
    """Return the rules as the YAML file that Prometheus reads."""
    return "\n".join(_yaml(rules())) + "\n"


def _rule(rule: _AlertRule, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.condition.format(metric=metrics[rule.metric].name),
        "for": rule.lasts,
        "labels": {"severity": rule.severity},
        "annotations": {"summary": rule.summary},
    }


def _by_subject(metrics: Mapping[str, Metric]) -> dict[str, dict[str, Metric]]:
    """Group metrics by the first part of their names; a part with a single metric is no group of its own."""
    first = {name: name.partition("_")[0].removesuffix("s") for name in metrics}
    often = Counter(first.values())
    groups: dict[str, dict[str, Metric]] = {"store": {}}
    for name, metric in metrics.items():
        groups.setdefault(first[name] if often[first[name]] > 1 else "store", {})[name] = metric
    return groups


def _panel(name: str, metric: Metric) -> dict[str, Any]:
    labels = _labels(metric)
    expression, unit = _query(metric, labels)
    return {
        "type": "timeseries",
        "title": name.replace("_", " "),
        "description": metric.documentation,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "expr": expression,
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in labels) or name,
                "datasource": _DATASOURCE,
            }
        ],
    }


def _query(metric: Metric, labels: tuple[str, ...]) -> tuple[str, str]:
    """Return the PromQL expression of a panel, and the unit of its values."""
    name = f"{metric.name}{_SUFFIXES.get(metric.type, '')}"
    by = f" by ({', '.join(labels)})" if labels else ""
    unit = next((unit for suffix, unit in _UNITS.items() if metric.name.endswith(suffix)), "short")
    if metric.type == "histogram":
        buckets = f"sum by ({', '.join(('le', *labels))}) (rate({metric.name}_bucket[{_WINDOW}]))"
        return f"histogram_quantile(0.95, {buckets})", unit
    if metric.type == "counter":
        return f"sum{by} (rate({name}[{_WINDOW}]))", "short" if unit == "s" else unit
    if metric.name.endswith(_AGE):
        return f"time() - {name}", "s"
    return name, unit


def _labels(metric: Metric) -> tuple[str, ...]:
    return tuple(getattr(metric, "_labelnames", ()))


def _place(top: int, column: int, *, wide: bool = False) -> dict[str, int]:
    size = {"h": 1, "w": 24} if wide else {"h": _HEIGHT, "w": _WIDTH}
    return {**size, "x": column * _WIDTH, "y": top}


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Yield mappings and lists as lines of YAML; texts are written as JSON, which YAML reads in the same way."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _yaml(item, f"{indent}  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            for entry in item:
                first, *rest = _yaml(entry, f"{indent}    ")
                yield f"{indent}  - {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{key}: {json.dumps(item, ensure_ascii=False)}"
