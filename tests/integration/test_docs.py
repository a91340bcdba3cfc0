"""The documentation is correct: pages give the shown output, examples run, commands and settings exist."""

import builtins
import errno
import os
import re
import shlex
import subprocess
from contextlib import ExitStack

import httpx
import psycopg
import pytest
from typer.main import get_command

import redrive
from redrive.alerts.config.read import read
from redrive.cli.app import app
from redrive.config import load
from tests.support.docs_pages import PAGES, ROOT, chapters
from tests.support.docs_reader import Reader
from tests.support.warm_python import warm_python

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUN = {"python", "sh", "console"}
CHAPTERS = [chapter for page in PAGES for chapter in chapters(page).values()]
BLOCKS = [block for chapter in CHAPTERS for block in chapter]
# test_quickstart.py runs the quick start.
FOLLOWED = [
    chapter
    for chapter in CHAPTERS
    if RUN & {block.language for block in chapter} and chapter[0].page.name != "quickstart.md"
]
PROGRAMS = "redrive|python|pip|make|docker|kubectl|systemctl|psql|pg_dump|pg_restore|createdb|sqlite3|cp|curl|git"
TYPED = re.compile(rf"(?:\$ )?((?:{PROGRAMS}) \S.*?)(?: +#.*)?")
INLINE = re.compile(r"`redrive ([^`]+)`")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

OPERATIONS = "test_operations_page.py, with a server's own programs"

# Commands that a page shows and no reader of ours types, each with who does, or why nobody can.
UNTYPED = {
    ("README.md", "make demo"): "it makes an environment first; what it then runs, test_demo.py runs",
    ("README.md", "make test"): "you are looking at it",
    ("README.md", "pip install '/path/to/redrive[all]'"): "test_quickstart.py, from the wheel",
    ("docs/index.md", "pip install '/path/to/redrive[all]'"): "test_quickstart.py, from the wheel",
    ("docs/quickstart.md", "pip install 'redrive[all]'"): "test_quickstart.py, from the wheel",
    ("docs/quickstart.md", "python -m venv .venv && . .venv/bin/activate"): "test_quickstart.py",
    (
        "docs/alerts.md",
        "redrive watch --listen 127.0.0.1:9464",
    ): "it goes on until it is stopped, as test_watch.py does",
    (
        "docs/operations.md",
        "redrive run --quiet settlement.py:flow --param day=2026-11-15",
    ): "test_rerun_kills.py, many times",
    (
        "docs/operations.md",
        "pg_dump --format=custom --schema=pipeline --file=redrive.dump --dbname=postgresql://redrive_owner@db/prod",
    ): OPERATIONS,
    (
        "docs/operations.md",
        "psql --command='DROP SCHEMA pipeline CASCADE' --dbname=postgresql://redrive_owner@db/prod",
    ): OPERATIONS,
    (
        "docs/operations.md",
        "pg_restore --exit-on-error --single-transaction --dbname=postgresql://redrive_owner@db/prod redrive.dump",
    ): OPERATIONS,
    ("docs/command-line.md", "redrive services show shipfast"): "a day of a service takes a day; test_service_chart.py",
}


def run(*arguments, **options):
    return subprocess.run(warm_python(*arguments), capture_output=True, text=True, timeout=100, check=False, **options)


def named(page):
    return str(page.relative_to(ROOT))


def of(chapter):
    return f"{named(chapter[0].page)} {chapter[0].directory}".strip()


# ── output of a page ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)  # as long as it takes to read a page
@pytest.mark.parametrize("chapter", FOLLOWED, ids=of)
def test_page_commands_give_the_shown_output(chapter, tmp_path, new_store):
    with ExitStack() as stack:
        kinds = {block.store for block in chapter} - {"sqlite"}
        stores = {kind: stack.enter_context(new_store(kind)) for kind in kinds}
        for seen in Reader(tmp_path, stores=stores).follow(chapter):
            seen.check()


def test_commands_that_are_not_run_have_a_reason():
    elsewhere = [block for block in BLOCKS if block.language not in RUN | {"toml", "py", "pycon"}]
    untyped = {
        (named(block.page), typed[1])
        for block in elsewhere
        for typed in map(TYPED.fullmatch, block.text.splitlines())
        if typed
    }
    assert {one for one in untyped if one not in UNTYPED} == set()
    assert {one for one in UNTYPED if one not in untyped} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_inline_commands_exist(page):
    program = get_command(app)
    for said in INLINE.findall(FENCED.sub("", page.read_text())):
        words = shlex.split(said.replace("…", "ETC"))
        command = program
        while words and not words[0].startswith("-") and hasattr(command, "commands"):
            command = command.get_command(None, words.pop(0))
            assert command is not None, said
        options = {option for one in command.params for option in one.opts} | {"--help", "-h", "--install-completion"}
        assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} - options == set(), said


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "toml"], ids=lambda block: block.place)
def test_settings_of_a_page_are_valid(block, tmp_path):
    if block.text.startswith("# refused"):
        return  # and in which words, the tests of the reader say
    (tmp_path / "redrive.toml").write_text(block.text)
    values = {"DATABASE_URL": "postgresql://h/d", "SLACK_URL": "https://h/x", "HUB_KEY": "0123456789abcdef"}
    environ = {name: values.get(name, "x") for name in re.findall(r"\$\{?(\w+)", block.text)}
    settings = load(environ=environ, directory=tmp_path)
    assert settings != load(environ={}, directory=tmp_path.parent)
    read(settings)


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_committed_example_is_the_code_of_the_page(name):
    (shown,) = [block for block in BLOCKS if named(block.page) == name and block.file == "vendor.py"]
    assert shown.text == "# vendor.py\n" + (ROOT / "examples" / "deliveries" / "vendor.py").read_text()


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_runs(example, tmp_path):
    done = run("-W", "error", str(example), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_pages_have_targets(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_queries_of_the_tasks_page_give_expected_rows(store_url, tmp_path):
    page = [block for block in BLOCKS if block.page.name == "tasks.md"]
    (fees,) = [block for block in page if block.file == "fees.py"]
    (tmp_path / "fees.py").write_text(fees.text)
    held = run(*("-c", "import fees; fees.flow.run()"), cwd=tmp_path, env={**os.environ, "REDRIVE_STORE": store_url})
    assert "redrive.errors.FlowStopped: flow 'fees' has 1 dead letter" in held.stderr

    def ask(connection):
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL search_path TO pipeline")
        return [connection.exec_driver_sql(query.text).all() for query in page if query.language == "sql"]

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
def test_verdict_equals_its_page(described, kind):
    name, _, scope = described.partition(", in a ")
    assert redrive.classify(failure_of(name), scope=scope or "call").kind == kind


def test_readme_figures_equal_benchmark_run():
    recorded = (ROOT / "docs" / "benchmarks.md").read_text()
    (quick,) = re.findall(r"A quick look only: (.+?)\.\*\*", recorded)
    for title in quick.split(", "):
        recorded, count = re.subn(rf"^## {title}\n(?s:.*?)(?=^## |\Z)", "", recorded, flags=re.MULTILINE)
        assert count == 1, title
    _, _, section = (ROOT / "README.md").read_text().partition("\n## How fast\n")
    rows = [line.split("|") for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    figures = {figure for _, _, ours, theirs, _ in rows[1:] for figure in re.findall(r"\d[\d,.]*\d|\d", ours + theirs)}
    assert len(figures) > 20
    assert [figure for figure in figures if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,])", recorded)] == []


def test_every_semantic_has_a_test_of_its_number():
    promised = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "semantics.md").read_text(), re.MULTILINE)
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    elsewhere = {"21"}  # named in the page with its file
    assert [number for number in promised if f"test_{int(number):02}_" not in source and number not in elsewhere] == []
