"""The record of a run of all benchmarks: one document, each part of it with when, with what and how it was measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).parents[1]
RESULTS = Path("bench/results.json")
PAGE = Path("docs/benchmarks.md")
WIDTH = 240  # a figure with all that belongs to it


def gathered(
    order: Sequence[str], fresh: Sequence[Mapping[str, Any]], earlier: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The document of this run; parts that were not asked for stay as they were, if it was on the same machine."""
    where = measure.environment()
    same = {"machine": where["machine"], "python": where["python"]}
    kept = earlier["parts"] if earlier and same.items() <= earlier.items() else []
    parts = {part["part"]: part for part in (*kept, *fresh)}
    return {**same, "parts": [parts[name] for name in order if name in parts]}


def read(path: Path) -> dict[str, Any] | None:
    """An earlier document; none where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def written(value: Any, indent: str = "") -> str:
    """JSON with a line for whatever fits on one: a figure is a line, and a changed figure a changed line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) < WIDTH or not isinstance(value, dict | list) or not value:
        return line
    deeper = f"{indent}  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"{deeper}{written(one, deeper)}" for one in value) + f"\n{indent}]"
    members = (f"{deeper}{json.dumps(name, ensure_ascii=False)}: {written(one, deeper)}" for name, one in value.items())
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def revision() -> dict[str, Any] | None:
    """The commit that is measured, and whether the tree differs from it; none outside a repository."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", ".", f":!{RESULTS}", f":!{PAGE}").strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": bool(changed)}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
