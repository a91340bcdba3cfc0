"""The documentation runs: every Python block of a page, in order, in one interpreter; every example; every verdict."""

import builtins
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
import pytest

import redrive

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUERY = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=100, check=False, **options
    )


def as_program(block):
    """A block that begins with the name of a file is that file, which a flow's workers import; it runs by itself."""
    named = re.match(r"# (\w+\.py)\n", block)
    if named is None:
        return block
    return (
        "import pathlib, subprocess, sys\n"
        f"pathlib.Path({named[1]!r}).write_text({block!r})\n"
        f"subprocess.run([sys.executable, '-W', 'error', {named[1]!r}], check=True)\n"
    )


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_as_it_stands(page, tmp_path):
    program = "\n".join(as_program(block) for block in BLOCK.findall(page.read_text()))
    done = run("-W", "error", "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example, tmp_path):
    done = run("-W", "error", str(example), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_queries_of_the_page_about_tasks_find_what_they_say(store_url, tmp_path):
    text = (ROOT / "docs" / "tasks.md").read_text()
    (fees,) = [block for block in BLOCK.findall(text) if block.startswith("# fees.py")]
    (tmp_path / "fees.py").write_text(fees)
    held = run(*("-c", "import fees; fees.flow.run()"), cwd=tmp_path, env={**os.environ, "REDRIVE_STORE": store_url})
    assert "redrive.errors.FlowStopped: flow 'fees' has 1 dead letter" in held.stderr

    def ask(connection):
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL search_path TO pipeline")
        return [connection.exec_driver_sql(query).all() for query in QUERY.findall(text)]

    with redrive.connect(store_url) as store:
        wrong, slow, story = store.database.read(ask)
    assert [(name, count) for name, _, count, _ in wrong] == [("fee", 1)]
    assert {(name, count) for name, count, _, _ in slow} == {("rows", 1), ("fee", 2)}
    assert [after for _, _, after, _ in story] == ["RUNNING", "RETRYING", "RUNNING", "DEAD_LETTER"]


def rows_of_the_verdict_table():
    text = (ROOT / "docs" / "verdicts.md").read_text()
    checked = text.partition("These rows are checked")[2].partition("\n\n- ")[0]
    return re.findall(r"^\| (.+?) \| (\w+) \|$", checked, re.MULTILINE)[1:]


def failure_of(name):
    kind, _, code = name.partition(" ")
    if kind == "HTTP":
        return httpx.Response(int(code))
    if kind == "SQLSTATE":
        return psycopg.errors.lookup(code)("refused")
    if kind == "errno":
        return OSError(getattr(errno, code), "failed")
    return getattr(builtins, kind)("failed")


@pytest.mark.parametrize(("described", "kind"), rows_of_the_verdict_table())
def test_a_verdict_is_what_its_page_says(described, kind):
    name, _, scope = described.partition(", in a ")
    assert redrive.classify(failure_of(name), scope=scope or "call").kind == kind


def test_every_semantic_that_is_promised_has_a_test_of_its_number():
    promised = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "semantics.md").read_text(), re.MULTILINE)
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    elsewhere = {"21"}  # named in the page with its file
    assert [number for number in promised if f"test_{int(number):02}_" not in source and number not in elsewhere] == []
