"""Imports point one way, and the rules are pure."""

import ast
import functools
from pathlib import Path

import redrive

ROOT = Path(redrive.__file__).parent

# From the ground up: a room may import from its own row and from those above it in this list.
LAYERS = [
    {
        "_internal",
        "clock",
        "config",
        "errors",
        "model",
        "flows",
        "letters",
        "notices",
        "runs",
        "types",
    },
    {"classify", "policy"},
    {"events"},
    {"calls", "store"},
    {"dlq", "observe", "explain", "simulate"},
    {"alerts"},
    {"store.store"},
    {"rows", "tasks", "streams", "engines"},
    {"testing"},
    {"demo"},
    {"cli", "console", "__main__"},
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
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts) if parts == ("store", "store") else parts[0]


@functools.cache
def imports(path):
    """Return every dotted name imported outside `if TYPE_CHECKING`, at the top or inside a function."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def offenders(files, is_forbidden):
    """Return the imports of each file that are forbidden there."""
    found = {path: [name for name in imports(path) if is_forbidden(path, name)] for path in files}
    return {str(path.relative_to(ROOT)): names for path, names in found.items() if names}


def imported_room(name):
    """Return the room of a dotted name; the store's entry point connects all rooms, so that it is one of its own."""
    parts = name.split(".")
    return "store.store" if parts[1:3] == ["store", "store"] else parts[1]


def is_from_a_higher_layer(path, name):
    return name.startswith("redrive.") and RANK[imported_room(name)] > RANK[room_of(path)]


def test_files_import_only_from_their_own_layer_and_below():
    assert len(FILES) > 300
    assert offenders(FILES, is_from_a_higher_layer) == {}


def test_only_alerts_store_and_cli_import_alerts():
    """The store carries the alerts and connects every run to them."""
    files = [path for path in FILES if room_of(path) not in {"alerts", "store.store", "cli"}]
    assert offenders(files, lambda path, name: name.startswith("redrive.alerts")) == {}


def test_classification_and_policies_are_pure():
    files = [path for path in FILES if room_of(path) in PURE]
    assert offenders(files, lambda path, name: name.split(".")[0] in IMPURE) == {}
