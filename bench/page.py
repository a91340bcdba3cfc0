"""The record of the benchmarks as a page of the documentation: tables with ratios, targets, and where we fall short."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import measure

WIDTH = 120
INTRODUCTION = """\
# Benchmarks

<!-- Written by `make bench` from bench/results.json: a change here is lost at the next run. -->

Every figure that redrive claims is measured by a program in `bench/`, its peers in the same run, set to the same work
and the same durability as far as they have it. `make bench` runs them all and writes this page and
`bench/results.json`; `python bench --only calls,rows` runs these parts, `python bench --quick` is a first look. Seconds
and rates are those of one machine. Ratios travel better: they were measured side by side."""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = results["parts"]
    sections = [INTRODUCTION, machine(results), *warnings(parts), targets(parts), *shortfalls(parts)]
    return "\n\n".join([*sections, *(text for part in parts for text in section(part))]) + "\n"


def machine(results: Mapping[str, Any]) -> str:
    where, parts = results["machine"], results["parts"]
    versions: dict[str, str] = {}
    for part in parts:
        versions |= part["versions"]
    listed = ", ".join(f"{name} {number or 'missing'}" for name, number in sorted(versions.items()))
    measured = {part["date"][:10] for part in parts} or {"never"}
    facts = {
        "measured": " to ".join(sorted({min(measured), max(measured)})),
        "revision": ", ".join(sorted({revision(part) for part in parts})) or "–",
        "machine": f"{where['cores']} cores, {where['processor']}, {where['memory_gb']:g} GB, {where['system']}",
        "Python": results["python"],
        "versions": listed or "–",
    }
    return markdown(("", ""), list(facts.items()))


def revision(part: Mapping[str, Any]) -> str:
    found = part["revision"]
    return f"`{found['commit']}`" + (" with changes" if found["dirty"] else "") if found else "unknown"


def warnings(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a reader must know before he believes a figure."""
    if quick := [part["title"] for part in parts if part["quick"]]:
        yield wrapped(
            f"**A quick look only: {', '.join(quick)}.** Few and short measurements show that the programs run; the "
            "figures mean nothing, and are compared with no target."
        )
    if lost := [part for part in parts if part["state"] != "done"]:
        told = [f"{part['title']} (`{part['command']}`): {part['state']}, {part['reason']}" for part in lost]
        yield f"**Without figures in this run:**\n\n{listed(told)}"


def targets(parts: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            target["what"],
            f"{shown(target['value'])} {target['unit']}",
            f"{target['relation']} {shown(target['limit'])}",
            {True: "met", False: "**missed**", None: "not measured"}[target["met"]],
        )
        for target in held_against(parts)
    ]
    table = markdown(("what", "measured", "target", ""), rows) if rows else "Nothing was measured against one."
    return f"## Targets\n\n{table}"


def shortfalls(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    missed = [
        f"{one['what']}: {shown(one['value'])} {one['unit']}, where {one['relation']} {shown(one['limit'])} is meant"
        for one in held_against(parts)
        if one["met"] is False
    ]
    if missed:
        yield f"## Where redrive falls short\n\n{listed(missed)}"


def held_against(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [target for part in parts if not part["quick"] for target in part["targets"]]


def section(part: Mapping[str, Any]) -> Iterator[str]:
    """One benchmark: how it measures, what it found, what the words mean."""
    yield f"## {part['title']}"
    yield from map(wrapped, part["about"])
    yield f"`{part['command']}`: {part['state']}" + (f", {part['reason']}" if part["reason"] else "") + "."
    for table in part["tables"]:
        yield f"### {table['title']}"
        yield figures(table["figures"])
        if table["rows"]:
            yield meanings(table["rows"])
    if part["rows"]:
        yield meanings(part["rows"])
    yield from map(wrapped, part["notes"])


def meanings(rows: Mapping[str, str]) -> str:
    return listed([f"**{name}**: {text}" for name, text in rows.items()])


def figures(found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each contender, a column for each figure, its median where it was repeated, its ratios."""
    columns = columns_of(found)
    by_row: dict[str, dict[str, Mapping[str, Any]]] = {}
    for figure in found:
        by_row.setdefault(figure["row"], {})[figure["name"]] = figure
    rows = [
        (emphasised(row), *(cell(measured.get(name), kind, key) for name, kind, key in columns.values()))
        for row, measured in by_row.items()
    ]
    told = [wrapped(f"\\* {figure['row']}: {figure['note']}.") for figure in found if "note" in figure]
    return "\n\n".join([markdown(("", *columns), rows), *told])


Place = tuple[str, str, str]
"""The name of a figure, which part of it, and for a ratio its heading."""


def columns_of(found: Sequence[Mapping[str, Any]]) -> dict[str, Place]:
    columns: dict[str, Place] = {}
    for figure in found:
        name = figure["name"]
        columns.setdefault(f"{name}, {figure['unit']}", (name, "value", ""))
    for figure in found:
        if "spread" in figure:
            columns.setdefault(f"median {figure['name']}", (figure["name"], "median", ""))
    for figure in found:
        for heading, ratio in figure.get("ratios", {}).items():
            if ratio is not None:
                columns.setdefault(heading, (figure["name"], "ratio", heading))
    return columns


def cell(figure: Mapping[str, Any] | None, kind: str, heading: str) -> str:
    if figure is None:
        return shown(None)
    if kind == "ratio":
        return shown(figure.get("ratios", {}).get(heading))
    if kind == "median":
        return shown(figure.get("spread", {}).get("median"))
    return shown(figure["value"]) + ("\\*" if "note" in figure else "")


def emphasised(row: str) -> str:
    return f"**{row}**" if row.startswith("redrive") else row


def shown(value: float | None) -> str:
    """Three digits of a small figure, all of a large one."""
    if value is None or value == int(value):
        return measure.number(value)
    return measure.number(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, the others to the right."""
    ruler = ("---", *("---:" for _ in header[1:])) if len(header) > 2 else ("---",) * len(header)
    return "\n".join("| " + " | ".join(clean(one) for one in row) + " |" for row in (header, ruler, *rows))


def listed(entries: Sequence[str]) -> str:
    return "\n".join(wrapped(f"- {entry}", deeper="  ") for entry in entries)


def wrapped(text: str, deeper: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)


def clean(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
