"""Imports point one way, and the rules are pure."""

import ast
from pathlib import Path

import pytest

import redrive

ROOT = Path(redrive.__file__).parent

# From the ground up: a room may import from its own row and from those above it in this list.
LAYERS = [
    {
        "model",
        "letters",
        "runs",
        "flows",
        "notices",
        "errors",
        "clock",
        "config",
        "masking",
        "extras",
        "stopping",
        "collection",
    },
    {"classify", "policy"},
    {"calls", "store"},
    {"dlq", "observe", "explain", "simulate"},
    {"alerts"},
    {"opening"},
    {"rows", "tasks", "streams", "engines"},
    {"testing"},
    {"demo"},
    {"cli", "console"},
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
PURE = {"classify", "policy"}
IMPURE = {
    "time",
    "random",
    "asyncio",
    "socket",
    "threading",
    "sqlite3",
    "sqlalchemy",
    "subprocess",
    "httpx",
    "requests",
}

FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """Every dotted name imported outside `if TYPE_CHECKING`, at the top or inside a function."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_from_its_own_layer_and_those_below(path):
    rank = RANK[room_of(path)]
    used = {name.split(".")[1] for name in imports(path) if name.startswith("redrive.")}
    assert {room for room in used if RANK[room] > rank} == set()


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) not in {"alerts", "opening", "cli"}], ids=str)
def test_whoever_announces_does_not_know_that_there_are_alerts(path):
    """The store carries them, and gives every run those who listen there."""
    assert [name for name in imports(path) if name.startswith("redrive.alerts")] == []


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in PURE], ids=lambda path: path.name)
def test_classification_and_policies_touch_neither_time_nor_chance_nor_the_world(path):
    assert {name.split(".")[0] for name in imports(path)} & IMPURE == set()
