"""Select the test files that a change can affect, by a graph of the imports: used by `make test-changed`.

    python -m tests.support.changed [--base REV] [--why FILE]

The graph is read with `ast`; nothing is imported. Tests and benchmarks also depend on the modules and programs that
their text names ("redrive.cli", "rows_worker.py"), so a selection may be too large. A test depends on each conftest.py
above it as a file, but on what a fixture imports only where the test names the fixture. The graph does not show that
`test_docs.py` searches all tests for the numbers of promises, nor what only mypy checks.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = re.compile(r"(src/redrive|tests)/.+\.py|bench/[^/]+\.py")
EVERYTHING = "tests"
CONFIGURATION = {"pyproject.toml", "constraints.txt", "Makefile"}
DOCUMENTATION = ("docs/", "examples/", "README.md", "mkdocs.yml")
DOCS_TESTS = {f"tests/integration/test_{name}.py" for name in ("docs", "site", "reference", "quickstart")}
AT_IMPORT = "@import"

WHOLE = "redrive.*"
DYNAMIC = {
    "redrive.cli.app": ("redrive.cli.*", "imports the module of a command by the command's name"),
    "redrive.store.migrate": ("redrive.store.migrations.*", "Alembic runs the files of the directory"),
    "redrive.tasks.workers.fork_server_client": ("redrive.tasks.workers.fork_server", "starts it as a program"),
    "redrive.tasks.killable.call": ("redrive.tasks.killable.worker", "starts it as a program"),
    "tests.support.warm_python": ("redrive.cli.app", "most programs that it starts are the command line"),
    "tests.support.rows_worker": ("redrive.rows.*", "takes every name of redrive.rows"),
    "tests.integration.test_demo": ("redrive.demo.programs.*", "runs the demo, which copies and runs the programs"),
    "tests.integration.test_docs": (WHOLE, "runs every page of the documentation"),
    "tests.integration.test_operations_page": (WHOLE, "searches the source for the messages of the page"),
    "tests.integration.test_reference": (WHOLE, "compares the reference with the docstrings"),
    "tests.integration.test_quickstart": (WHOLE, "builds the wheel and follows the quick start"),
    "tests.unit.classify.test_imports": ("redrive.classify.*", "reads the source of the package"),
    "tests.unit.test_changed": (WHOLE, "reads the import graph"),
    "tests.unit.test_exports": (WHOLE, "takes every public name"),
    "tests.unit.test_layers": (WHOLE, "reads the imports of every module"),
}
"""Dependencies that no import statement shows: by module, a pattern of the modules it depends on and the reason."""


class Import(NamedTuple):
    """An imported name: what is imported, the name in the file, and whether that happens in a function."""

    target: str
    name: str
    deferred: bool


class Source(NamedTuple):
    """A source file; one that was deleted is empty, and one that cannot be parsed imports nothing."""

    path: str
    text: str
    imports: list[Import]
    body: list[ast.stmt]


class Part(NamedTuple):
    """A top-level statement of a conftest.py, with the names that tests use it by; None where all tests use it."""

    node: str
    names: set[str] | None
    text: str


def read_source(root: Path, path: str) -> Source:
    text = (root / path).read_text(encoding="utf-8") if (root / path).is_file() else ""
    needs_body = path.endswith(("/__init__.py", "/conftest.py"))
    end = f"{text}\n\n".find("\n\n", text.rfind("import "))
    # Most files import only at their top; what follows the last import is three quarters of the time to parse them.
    for part in (text,) if needs_body else (text[:end], text):
        with suppress(SyntaxError):
            body = ast.parse(part, path).body
            return Source(path, text, list(read_imports(body)), body if needs_body else [])
    return Source(path, text, [], [])


def read_imports(body: Iterable[ast.AST], deferred: bool = False) -> Iterator[Import]:
    """Yield what statements import at any depth, without the blocks for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = alias.name if package else alias.name.partition(".")[0]
                yield Import(package + alias.name, alias.asname or name, deferred)
        elif isinstance(node, ast.Match) or hasattr(node, "body"):
            inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for name in ("orelse",) if _is_for_types(node) else ("body", "orelse", "handlers", "finalbody", "cases"):
                yield from read_imports(getattr(node, name, ()), inside)


def read_lazy_names(source: Source) -> dict[str, str]:
    """Return where the names are defined that a package's `__getattr__` imports; its block for types lists them."""
    if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in source.body):
        return {}
    blocks = [node for node in source.body if _is_for_types(node)]
    names = {
        f"{module_of(source.path)}.{each.name}": each.target for node in blocks for each in read_imports(node.body)
    }
    return {name: home for name, home in names.items() if name != home}  # a subpackage is its own home


def read_parts(conftest: Source) -> Iterator[Part]:
    """Yield the statements of a conftest.py, except imports, constants and the docstring."""
    lines = conftest.text.splitlines()
    unused = ast.Import | ast.ImportFrom | ast.Constant
    for node in [node for node in conftest.body if not isinstance(getattr(node, "value", node), unused)]:
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        text = "\n".join(lines[first - 1 : node.end_lineno])
        names = {target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)}
        names |= {*re.findall(r"fixture\(.*\bname=.(\w+)", text), getattr(node, "name", "")} - {""}
        always = "autouse" in text or any(name.startswith("pytest_") for name in names)
        yield Part(f"{conftest.path}::{first}", None if always or not names else names, text)


def _is_for_types(node: ast.AST) -> bool:
    test = getattr(node, "test", None)
    return isinstance(node, ast.If) and "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def module_of(path: str) -> str:
    """Return the dotted name of a file; the programs of `bench/` are no package."""
    return re.sub(r"^(src|bench)/|(/__init__)?\.py$", "", path).replace("/", ".")


def file_of(node: str) -> str:
    return node.removesuffix(AT_IMPORT).partition("::")[0]


def walk(starts: Iterable[str], edges: dict[str, set[str]]) -> dict[str, str | None]:
    """Return every node that the edges lead to, nearest first, each with the node before it."""
    reached: dict[str, str | None] = dict.fromkeys(starts)
    queue = list(reached)
    for node in queue:
        for target in edges.get(node, set()) - reached.keys():
            reached[target] = node
            queue.append(target)
    return reached


class Graph:
    """The dependencies of the source files.

    A node is a path; a path with `@import`, for what only importing the file executes; or a part of a conftest.py.
    """

    def __init__(self, root: Path, changed: Iterable[str] = ()) -> None:
        files = [path for top in ("src/redrive", "tests", "bench") for path in (root / top).rglob("*.py")]
        paths = {*changed, *(path.relative_to(root).as_posix() for path in files)}
        self.sources = {path: read_source(root, path) for path in sorted(paths) if SOURCE.fullmatch(path)}
        self.tests = {path for path in self.sources if "/test_" in path and (root / path).is_file()}
        self._modules = {module_of(path): path for path in self.sources}
        sources = self.sources.values()
        self._lazy_names = dict(each for source in sources for each in read_lazy_names(source).items())
        self._lazy_packages = {name.rpartition(".")[0] for name in self._lazy_names}
        self._parts = {each.path: list(read_parts(each)) for each in sources if each.path.endswith("/conftest.py")}
        self._programs: dict[str, dict[str, str]] = defaultdict(dict)
        for path in self.sources:
            folder, _, name = path.rpartition("/")
            stem = name.removesuffix(".py")
            self._programs[folder][stem if "_" in stem.strip("_") else name] = path  # a plain word names no program
        self.edges: dict[str, set[str]] = {}
        self._importers: dict[str, set[str]] = defaultdict(set)
        for source in sources:
            self._add(source)
        for node, targets in self.edges.items():
            for target in targets:
                self._importers[target].add(node)

    def _add(self, source: Source) -> None:
        path = source.path
        targets = [(each, target) for each in source.imports if (target := self._resolve(each.target))]
        packages = {f"{folder}/__init__.py" for folder in PurePosixPath(path).parents} & self.sources.keys() - {path}
        executed = {f"{package}{AT_IMPORT}" for package in packages}
        at_once = {f"{file_of(target)}{AT_IMPORT}" for each, target in targets if not each.deferred}
        self.edges |= {path + AT_IMPORT: executed | at_once, path: set()}
        for part in self._parts.get(path, ()):
            used = {target for each, target in targets if re.search(rf"\b{each.name}\b", part.text)}
            self.edges[part.node] = used | self._named(source, part.text) | self._fixtures(path, part.text)
        if path not in self._parts:
            self.edges[path] |= executed | {target for _, target in targets} | self._named(source, source.text)
        if path in self.tests:
            self.edges[path] |= self._fixtures(path, source.text)
        if dynamic := DYNAMIC.get(module_of(path)):
            self.edges[path] |= {self._modules[name] for name in self._modules if fnmatchcase(name, dynamic[0])}

    def _resolve(self, name: str) -> str | None:
        """Return the node of a dotted name: its module, or the module that defines a lazy name."""
        while name and name not in self._modules:
            name = self._lazy_names.get(name) or name.rpartition(".")[0]
        if name in self._lazy_packages:  # the package alone does not import its lazy names
            return self._modules[name] + AT_IMPORT
        return self._modules.get(name)

    def _named(self, source: Source, text: str) -> set[str]:
        """Return what a text names: attributes of lazy packages; in tests and benchmarks also modules and programs."""
        lazy = self._lazy_packages
        roots = {each.name: each.target for each in source.imports if each.target in lazy}
        roots |= {each.name: each.name for each in source.imports if each.name in lazy}
        nodes: set[str | None] = set()
        before = "(?<!from )(?<!import )"  # the imports of a module are known from its syntax tree
        if not source.path.startswith("src/"):
            before = ""  # a program in a string may import as well
            roots |= {"redrive": "redrive", "tests": "tests"}
            folder = "bench" if source.path.startswith(("bench/", "tests/unit/bench/")) else "tests/support"
            nodes |= {path for name, path in self._programs[folder].items() if name in text}
        for name, bound in roots.items():
            uses = set(re.findall(rf"{before}{name}((?:\.\w+)+)", text))
            nodes |= {self._resolve(bound + use) for use in uses}
        return nodes - {None}

    def _fixtures(self, path: str, text: str) -> set[str]:
        """Return the conftest.py files above a path, and those of their parts that a text names."""
        above = {f"{folder}/conftest.py" for folder in PurePosixPath(path).parents} & self._parts.keys()
        words = set(re.findall(r"\w+", text))
        parts = [part for conftest in above for part in self._parts[conftest]]
        return above | {part.node for part in parts if part.names is None or part.names & words}

    def select(self, changed: Iterable[str]) -> list[str]:
        """Return the test files that a change of these files can affect, or `tests` for all."""
        changed = set(changed)
        readers = {test for path in changed for test in self._readers(path)}
        if EVERYTHING in readers:
            return [EVERYTHING]
        reached = walk([node for node in self.edges if file_of(node) in changed], self._importers)
        return sorted(self.tests & (readers | reached.keys()))

    def _readers(self, path: str) -> set[str]:
        """Return the tests that read a file which the graph does not show."""
        if path in self.sources:
            return set()
        if path in CONFIGURATION or path.startswith(("src/", "tests/")):
            return {EVERYTHING}
        if path.startswith("bench/"):
            return {test for test in self.tests if test.startswith("tests/unit/bench/")}
        if path.startswith(DOCUMENTATION):
            page = PurePosixPath(path).name if path.endswith(".md") else "mkdocs.yml"
            return DOCS_TESTS | {test for test in self.tests if page in self.sources[test].text}
        return set()

    def explain(self, test: str, changed: Iterable[str]) -> list[str]:
        """Return a shortest chain of files from a test to a changed file; empty where there is none."""
        reached = walk([test], self.edges)
        node = next((node for node in reached if file_of(node) in changed), None)
        if node is None:
            return next(([test, path] for path in changed if {test, EVERYTHING} & self._readers(path)), [])
        chain = [file_of(node)]
        while node := reached[node]:
            chain.insert(0, file_of(node))
        return list(dict.fromkeys(chain))


def changed_files(root: Path, base: str = "HEAD") -> list[str]:
    """Return the files that differ from a revision, deleted and untracked ones included."""
    diff = ["git", "diff", "-z", "--name-only", "--no-renames", base, "--"]
    untracked = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    printed = [subprocess.check_output(command, cwd=root, text=True) for command in (diff, untracked)]
    return sorted({*"".join(printed).split("\0")} - {""})


def main(arguments: list[str] | None = None, root: Path = ROOT) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.changed", description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="HEAD", metavar="REV", help="The revision to compare with (default: HEAD).")
    parser.add_argument("--why", metavar="FILE", help="Print the import chain from this test file to a changed file.")
    options = parser.parse_args(arguments)
    try:
        changed = changed_files(root, options.base)
    except subprocess.CalledProcessError:  # git has printed the reason
        sys.exit(f"cannot compare with {options.base!r}: pass a revision that git knows, such as HEAD~3")
    graph = Graph(root, changed)
    paths = graph.explain(options.why, changed) if options.why else graph.select(changed)
    sys.stdout.writelines(f"{path}\n" for path in paths)
    if not paths:
        sys.stderr.write(f"the change does not affect {options.why or 'any test'}\n")


if __name__ == "__main__":
    main()
