"""The quick start as a new user follows it: the wheel, an empty environment outside the repository, every command."""

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.docs_pages import ROOT, blocks
from tests.support.docs_reader import Reader
from tests.support.wheel import bare_environment, build_wheel, lend, pip

QUICKSTART = ROOT / "docs" / "quickstart.md"

ALONE = """
import sys
import redrive

@redrive.retry(attempts=2, base=0.0)
def load():
    return 42

assert load() == 42
with redrive.connect() as store:
    store.dlq.put({"fee": "N/A"}, ValueError("fee"), pipeline="vendor")
    assert [cause.count for cause in store.dlq.causes()] == [1]
assert not {"duckdb", "httpx", "polars", "psycopg", "pydantic"} & set(sys.modules)
"""

FLOW = """
import redrive

flow = redrive.Flow("count")

@flow.task
def numbers():
    return [1, 2, 3]

@flow.task(each=numbers)
def double(number):
    return 2 * number
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def python(wheel, tmp_path):
    return bare_environment(tmp_path / "environment", wheel)


def run(python, *words, cwd):
    environ = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(cwd)}
    return subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=100, check=False)


def read(page, python, directory):
    directory.mkdir()
    for seen in Reader(directory, python=python).follow(list(blocks(page))):
        seen.check()


def test_wheel_holds_only_the_package(wheel):
    source = ROOT / "src"
    package = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in inside if ".dist-info/" not in name} == package
    assert "redrive/py.typed" in package
    beside = {Path(name).name for name in inside - package}
    assert beside == {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt"}


def test_bare_wheel_has_calls_letters_flows_and_cli(python, tmp_path):
    lend(python, set())
    done = run(python, "python", "-W", "error", "-c", ALONE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert run(python, "redrive", "dlq", "causes", cwd=tmp_path).returncode == 0
    (tmp_path / "count.py").write_text(FLOW)
    assert "SUCCESS\t4\n" in run(python, "redrive", "run", "count.py:flow", cwd=tmp_path).stdout


def test_missing_extra_gives_one_sentence(python, tmp_path):
    lend(python, set())
    (tmp_path / "vendor.py").write_text(
        "import redrive\n"
        "pipeline = redrive.Pipeline('vendor', source=redrive.rows.csv('in.csv'),\n"
        "                            sink=redrive.rows.table('sqlite:///out.db', 'out', key='id', create=True))\n"
    )
    (tmp_path / "in.csv").write_text("id\n1\n")
    done = run(python, "redrive", "run", "vendor.py:pipeline", cwd=tmp_path)
    assert done.returncode != 0
    assert re.fullmatch(r"redrive: .*pip install 'redrive\[rows\]'.*\n", done.stderr)


@pytest.mark.timeout(300)  # as long as it takes to read a page
def test_quick_start_works_as_written(python, tmp_path):
    (needed,) = re.findall(r"This page needs `redrive\[([\w,]+)\]`", QUICKSTART.read_text())
    lend(python, set(needed.split(",")))
    place = run(python, "python", "-c", "import redrive, sys; print(redrive.__file__, *sys.path)", cwd=tmp_path)
    assert str(ROOT / "src") not in place.stdout
    assert str(tmp_path / "environment") in place.stdout.split()[0]
    read(QUICKSTART, python, tmp_path / "empty")


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_install_command_of_the_page_works(python, wheel, tmp_path):
    """From the package index, in the current versions."""
    (extras,) = re.findall(r"^pip install 'redrive(\[[\w,]+\])'$", QUICKSTART.read_text(), re.MULTILINE)
    pip(python, f"{wheel}{extras}")
    read(QUICKSTART, python, tmp_path / "empty")
