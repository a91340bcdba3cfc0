"""docs/architecture.md names what exists: every module, package and table, and the layers of test_layers.py."""

import re
from pathlib import Path

import pytest

import redrive
from redrive.store.schema import metadata
from tests.unit.test_layers import LAYERS

ROOT = Path(redrive.__file__).parent
PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "architecture.md").read_text()
NAMED = re.compile(r"`([^`\s]+)`")


@pytest.mark.parametrize("name", ["architecture.md", "extending.md"])
def test_named_module_exists(name):
    paths = {path for path in NAMED.findall((PAGES / name).read_text()) if path.endswith(".py") and "…" not in path}
    modules = {path for path in paths if not path.startswith(("tests/", "docs/"))}
    assert len(modules) > 5
    assert [path for path in sorted(modules) if not (ROOT / path).is_file()] == []
    assert [path for path in sorted(paths - modules) if not (ROOT.parents[1] / path).is_file()] == []


def test_named_package_exists():
    packages = {path for path in NAMED.findall(PAGE) if re.fullmatch(r"[a-z_]+(/[a-z_]+)+", path)}
    assert len(packages) > 20
    assert [path for path in sorted(packages) if not (ROOT / path).is_dir()] == ["src/redrive"]


def test_every_table_is_named():
    tables = {table.name for table in metadata.tables.values()}
    named = set(NAMED.findall(PAGE.partition("\n## Tables\n")[2].partition("\n## ")[0]))
    assert tables - named == set()


def test_every_layer_is_in_its_row():
    rows = re.findall(
        r"^\| [^|]+ \| ([^|]+) \|", PAGE.partition("\n## Layers\n")[2].partition("\n## ")[0], re.MULTILINE
    )
    shown = [{name.removesuffix(".py").replace("/", ".") for name in NAMED.findall(row)} for row in rows[1:]]
    exist = {path.stem for path in ROOT.iterdir()} | {"store.store"}
    layers = [present for rooms in LAYERS if (present := rooms & exist)]
    assert shown[:-1] == layers[:0:-1]
    assert shown[-1] <= layers[0]
