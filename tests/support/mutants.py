"""Mutation sampler: change one operator, constant or statement of `src/redrive` and see whether a test fails.

    python -m tests.support.mutants --tree DIR --coverage FILE --count 240 --json results.json

Written by hand because mutmut and cosmic-ray copy the whole tree, wrap every function or need a session database. This
program takes a seeded sample, runs only tests that execute the mutated line, and draws the same sample from two
checkouts with the same sources, so that two test suites can be compared.
"""

from __future__ import annotations

import argparse
import ast
import collections
import difflib
import itertools
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import coverage

PACKAGES = ("policy", "classify", "dlq", "rows", "tasks", "alerts")
GROUPS = ("tests/unit/", "tests/contract/", "tests/integration/", "tests/chaos/")
SWAPS = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is")},
    **{ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and")},
    **{ast.Add: (r"\+", "-"), ast.Sub: ("-", "+"), ast.Mult: (r"\*", "//"), ast.FloorDiv: ("//", "*")},
}
NEGATING = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # a swap of these negates the comparison
NOT_NUMBERS = (ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr)  # Python 3.11 gives wrong positions inside f-strings


@dataclass(order=True)
class Mutant:
    """One change to one source file, the tests for it, and their outcome."""

    path: str
    line: int
    column: int
    operator: str
    start: int
    end: int
    replacement: str
    covering_lines: tuple[int, int]
    before: str = ""
    after: str = ""
    is_executed: bool = False
    tests: list[str] = field(default_factory=list)
    outcome: str = "uncovered"
    failed_test: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.operator}: {self.before} -> {self.after}"

    def draw(self, seed: int) -> float:
        """Return a random number by text, not by position: an edit elsewhere must not change the whole sample."""
        return random.Random(f"{seed} {self.path} {self.column} {self.before} -> {self.after}").random()

    def apply(self, source: bytes) -> bytes:
        """Return the mutated source, with as many lines as before."""
        replacement = self.replacement.encode()
        lost = source.count(b"\n", self.start, self.end) - replacement.count(b"\n")
        return source[: self.start] + replacement + b"\n" * lost + source[self.end :]

    def is_valid(self, source: bytes) -> bool:
        """Return whether the mutated source compiles and differs in more than a comment."""
        mutated = self.apply(source)
        try:
            compile(mutated, self.path, "exec")
        except SyntaxError:
            return False
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


class SourceFile:
    """A source file and its mutants: in function bodies, and in default arguments that are integers or booleans."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self._line_starts = [0, *(match.end() for match in re.finditer(b"\n", source))]

    def find_mutants(self) -> Iterator[Mutant]:
        for node, covering_lines in walk_functions(ast.parse(self.source), is_inside=False):
            for operator, start, end, replacement in self._edits(node):
                line = self.source.count(b"\n", 0, start) + 1
                first = self._line_starts[line - 1]
                lines = covering_lines or (line, line)
                mutant = Mutant(self.path, line, start - first, operator, start, end, replacement, lines)
                texts = (self.source, mutant.apply(self.source))
                mutant.before, mutant.after = (text[first:].partition(b"\n")[0].decode().strip() for text in texts)
                yield mutant

    def _edits(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        """Yield the changes to one node: operator, first and last byte, new text."""
        match node:
            case ast.Compare(left, operators, operands):
                for pair, operator in zip(itertools.pairwise([left, *operands]), operators, strict=True):
                    yield from self._swaps(*pair, operator)
            case ast.BoolOp(operator, operands):
                for pair in itertools.pairwise(operands):
                    yield from self._swaps(*pair, operator)
            case ast.BinOp(left, operator, right) if may_be_number(node):
                yield from self._swaps(left, right, operator)
            case ast.AugAssign(target, operator, value) if may_be_number(value):
                yield from self._swaps(target, value, operator)
            case ast.UnaryOp(ast.Not()):
                start, _ = self._span(node)
                yield "Not", start, start + re.match(rb"not\s*", self.source[start:]).end(), ""
            case ast.Constant(bool(value)):
                yield "boolean", *self._span(node), str(not value)
            case ast.Constant(int(value)):
                yield "integer", *self._span(node), str(value + 1)
            case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
                yield "return None", *self._span(node), "return None"
            case ast.Expr(ast.Call() | ast.Await(ast.Call())):
                yield "delete call", *self._span(node), "pass"
            case ast.If(test) | ast.While(test) if not has_own_negation(test):
                start, end = self._span(test)
                yield "negate", start, end, f"not ({self.source[start:end].decode()})"

    def _swaps(self, left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        if type(operator) in SWAPS:
            pattern, replacement = SWAPS[type(operator)]
            gap = self._span(left)[1], self._span(right)[0]
            token = re.search(pattern.encode(), self.source[slice(*gap)])
            yield type(operator).__name__, gap[0] + token.start(), gap[0] + token.end(), replacement

    def _span(self, node: ast.AST) -> tuple[int, int]:
        starts = self._line_starts
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def walk_functions(node: ast.AST, *, is_inside: bool) -> Iterator[tuple[ast.AST, tuple[int, int] | None]]:
    """Yield the nodes to mutate, with the lines that cover a node where those are not its own line."""
    children = ast.iter_child_nodes(node)
    if isinstance(node, SKIPPED) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        is_stub = all(isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in node.body)
        if node.name == "__repr__" or is_stub:
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if isinstance(default, ast.Constant):
                yield default, (node.body[0].lineno, node.end_lineno)  # itself, it is executed at import only
        children, is_inside = node.body, True
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value else []
    elif is_inside:
        yield node, None
    for child in children:
        yield from walk_functions(child, is_inside=is_inside)


def may_be_number(node: ast.AST) -> bool:
    """Return whether no operand of an arithmetic expression is visibly text or a collection."""
    if isinstance(node, ast.BinOp):
        return may_be_number(node.left) and may_be_number(node.right)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return not (is_text or isinstance(node, NOT_NUMBERS))


def has_own_negation(test: ast.AST) -> bool:
    """Return whether another change already negates this condition."""
    match test:
        case ast.Constant() | ast.UnaryOp(ast.Not()):
            return True
        case ast.Compare(ops=[operator]):
            return isinstance(operator, NEGATING)
    return False


def sample_mutants(tree: Path, count: int, seed: int) -> list[Mutant]:
    """Draw the same number of mutants from each package; the sample depends on the sources and the seed only."""
    sample = []
    for number, package in enumerate(PACKAGES):
        files = (tree / "src/redrive" / package).rglob("*.py")
        sources = {str(file.relative_to(tree)): file.read_bytes() for file in files}
        mutants = sorted(
            mutant for path, source in sources.items() for mutant in SourceFile(path, source).find_mutants()
        )
        mutants.sort(key=lambda mutant: mutant.draw(seed))
        share = count // len(PACKAGES) + (number < count % len(PACKAGES))
        sample += itertools.islice((mutant for mutant in mutants if mutant.is_valid(sources[mutant.path])), share)
    return sample


class CoveringTests:
    """Selects the test functions that execute a mutated line, the most specific first."""

    def __init__(self, tree: Path, data_file: Path) -> None:
        data = coverage.CoverageData(basename=str(data_file))
        data.read()
        self._contexts: dict[str, dict[int, list[str]]] = {}
        self._breadth: collections.Counter[str] = collections.Counter()
        for filename in data.measured_files():
            by_line = data.contexts_by_lineno(filename)
            self._contexts[filename[filename.rfind("/src/redrive/") + 1 :]] = by_line
            self._breadth.update(itertools.chain.from_iterable(by_line.values()))
        tests = collect_tests(tree)
        self._tests = {context: test for context, test in tests.items() if context in self._breadth}
        if not self._tests:
            sys.exit(f"{data_file} names no test of {tree}. Run `make test-coverage` there first.")
        # Hypothesis runs a property in its own method `test_function`, which coverage.py takes for the test.
        nameless = sorted(test for context, test in tests.items() if context not in self._breadth)
        texts = {test: (tree / test.partition("::")[0]).read_text() for test in nameless}
        self._properties = {test: text for test, text in texts.items() if "hypothesis" in text}

    def select(self, mutant: Mutant, most: int) -> None:
        """Set the tests of a mutant, and whether its line is executed at all."""
        first, last = mutant.covering_lines
        by_line = self._contexts.get(mutant.path, {})
        contexts = {context for line in range(first, last + 1) for context in by_line.get(line, ())}
        mutant.is_executed = bool(contexts)
        named = sorted(contexts & self._tests.keys(), key=self._rank)
        is_property_run = any(context.startswith("hypothesis.") for context in contexts)
        properties = self._find_properties(mutant)[: most // 3] if is_property_run else []
        mutant.tests = [self._tests[context] for context in named[: most - len(properties)]] + properties

    def _rank(self, context: str) -> tuple[int, int, str]:
        test = self._tests[context]
        group = next((rank for rank, prefix in enumerate(GROUPS) if test.startswith(prefix)), len(GROUPS))
        return group, self._breadth[context], test

    def _find_properties(self, mutant: Mutant) -> list[str]:
        """Return property tests that import the mutated module or belong to its package, similar names first."""
        module = Path(mutant.path).relative_to("src/redrive").with_suffix("")
        package, name = str(module.parent).replace("/", r"\."), module.name
        has_import = re.compile(rf"^from redrive\.{package}(\.{name} import| import .*\b{name}\b)", re.M).search
        ranks = {}
        for test, text in self._properties.items():
            if rank := bool(has_import(text)) + (f"/{module.parent}/" in test):
                test_name = Path(test.partition("::")[0]).stem.removeprefix("test_")
                ranks[test] = rank + difflib.SequenceMatcher(None, name, test_name).ratio()
        return sorted(ranks, key=ranks.get, reverse=True)


def collect_tests(tree: Path) -> dict[str, str]:
    """Return the node ids of all test functions, by the names that coverage.py gives them."""
    command = [tree / ".venv/bin/python", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cannot collect the tests of {tree}:\n{done.stdout[-2000:]}{done.stderr}")
    tests = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    return {test.replace(".py::", ".").replace("::", ".").replace("/", "."): test for test in tests}


class Slot:
    """A copy of the package in which one mutant at a time is tested."""

    def __init__(self, tree: Path, directory: Path, timeout: float) -> None:
        self._tree, self._directory, self._timeout = tree, directory, timeout
        self._python = tree / ".venv/bin/python"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")},
            "PYTHONPATH": str(directory / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis"),
        }
        shutil.copytree(tree / "src/redrive", directory / "src/redrive", ignore=shutil.ignore_patterns("__pycache__"))
        # Checked by hash: a mutated file must never be loaded from the bytecode of the original.
        compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", directory / "src"]
        subprocess.run([self._python, *compile_all], check=True)
        probe = [self._python, "-c", "import redrive; print(redrive.__file__)"]
        imported = subprocess.check_output(probe, cwd=tree, env=self._environment, text=True)
        if not imported.startswith(str(directory)):
            sys.exit(f"tests would import {imported.strip()}, not the copy in {directory}")

    def run_tests(self, *arguments: str, timeout: float | None = None) -> tuple[int | None, list[str]]:
        """Run pytest; return its exit code, or None after a timeout, and the tests that failed."""
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--timeout", "60"]
        command = [self._python, "-m", "pytest", *options, *arguments]
        output = self._directory / "output"  # not a pipe, which a surviving grandchild would keep open
        started = {"cwd": self._tree, "env": self._environment, "start_new_session": True}
        with output.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink, **started) as process:
            code = wait_or_kill(process, timeout or self._timeout)
        return code, re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", output.read_text(errors="replace"), re.M)

    def run_mutant(self, mutant: Mutant) -> None:
        """Run the tests of a mutant and record the outcome."""
        file, started = self._directory / mutant.path, time.monotonic()
        source = file.read_bytes()
        file.write_bytes(mutant.apply(source))
        code, failed = self.run_tests("-x", *mutant.tests)
        file.write_bytes(source)
        mutant.seconds, mutant.failed_test = round(time.monotonic() - started, 1), failed[0] if failed else ""
        # pytest exits with 5 without tests, and with 4 for unknown ones: either the mutant broke the import of a test
        # module, which pytest then names as failed, or the list of tests is wrong.
        error = "killed" if failed else "error"
        mutant.outcome = {0: "survived", None: "timeout", 4: error, 5: error}.get(code, "killed")


def wait_or_kill(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Return the exit code, or None after a timeout; the tests may first remove their servers and files."""
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return None


def run_mutants(mutants: list[Mutant], slots: list[Slot]) -> None:
    """Run all mutants that have tests, one per slot at a time."""
    free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)
    numbers = itertools.count(1)

    def run(mutant: Mutant) -> None:
        if mutant.tests:
            slot = free.get()
            slot.run_mutant(mutant)
            free.put(slot)
        result = f"{mutant.outcome} ({len(mutant.tests)} tests, {mutant.seconds} s)"
        sys.stderr.write(f"{next(numbers)}/{len(mutants)} {result}: {mutant}\n")

    with ThreadPoolExecutor(len(slots)) as executor:
        list(executor.map(run, mutants))


def check_control(slot: Slot, mutants: list[Mutant], seed: int) -> None:
    """Stop unless the tests of two mutants pass on the unmutated copy."""
    covered = [mutant for mutant in mutants if mutant.tests]
    tests = {test for mutant in random.Random(seed).sample(covered, min(2, len(covered))) for test in mutant.tests}
    code, failed = slot.run_tests(*sorted(tests)) if tests else (0, [])
    if code != 0:
        sys.exit(f"control failed: pytest exited with {code} on unmutated sources; failed tests: {failed}")


def check_kills(slot: Slot, mutants: list[Mutant], timeout: float) -> None:
    """Turn kills by tests that also fail on the unmutated copy into errors."""
    killers = sorted({mutant.failed_test for mutant in mutants if "::" in mutant.failed_test})
    code, failed = slot.run_tests(*killers, timeout=timeout) if killers else (0, [])
    if code not in {0, 1}:
        sys.stderr.write(f"WARNING: kills are not verified: pytest exited with {code} on unmutated sources\n")
    for mutant in mutants:
        if mutant.failed_test in failed:
            mutant.outcome = "error"


def summarize(mutants: list[Mutant]) -> dict[str, dict[str, float]]:
    """Count the outcomes per package; a timeout counts as killed, an error is left out of the percentage."""
    summary = {}
    for package in (*PACKAGES, ""):
        outcomes = collections.Counter(mutant.outcome for mutant in mutants if f"redrive/{package}" in mutant.path)
        killed, valid = outcomes["killed"] + outcomes["timeout"], outcomes.total() - outcomes["error"]
        counts = {name: outcomes[name] for name in ("survived", "uncovered", "timeout", "error")}
        percent = round(100 * killed / max(valid, 1), 1)
        summary[package or "total"] = {"mutants": outcomes.total(), "killed": killed, **counts, "killed %": percent}
    return summary


def report(mutants: list[Mutant]) -> str:
    """Return the table per package, the errors and the survivors."""
    summary = summarize(mutants)
    lines = [f"{'package':10}" + "".join(f"{name:>11}" for name in summary["total"])]
    lines += [f"{name:10}" + "".join(f"{value:>11}" for value in row.values()) for name, row in summary.items()]
    titles = {"ERRORS": "error", "Survived": "survived", "Uncovered": "uncovered"}
    for title, outcome in titles.items():
        chosen = [mutant for mutant in sorted(mutants) if mutant.outcome == outcome]
        lines += ["", f"{title}: {len(chosen)}", *(f"  {mutant}" for mutant in chosen)]
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__.partition("\n")[0])
    root = Path(__file__).parents[2]
    parser.add_argument("--tree", type=Path, default=root, help="Checkout to mutate and test. Default: this one.")
    parser.add_argument("--coverage", type=Path, help="Data of a run with dynamic_context = test_function.")
    parser.add_argument("--count", type=int, default=240, help="Number of mutants.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the sample.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of mutants tested at once.")
    parser.add_argument("--most-tests", type=int, default=25, help="Maximum number of test functions per mutant.")
    parser.add_argument("--timeout", type=float, default=120, help="Seconds per mutant.")
    parser.add_argument("--json", type=Path, help="File for all results.")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    tree, memory = options.tree.resolve(), Path("/dev/shm")
    mutants = sample_mutants(tree, options.count, options.seed)
    covering = CoveringTests(tree, options.coverage or tree / ".coverage")
    for mutant in mutants:
        covering.select(mutant, options.most_tests)
    place = memory if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30 else None
    with tempfile.TemporaryDirectory(prefix="redrive-mutants-", dir=place, ignore_cleanup_errors=True) as directory:
        slots = [Slot(tree, Path(directory, str(number)), options.timeout) for number in range(options.jobs)]
        check_control(slots[0], mutants, options.seed)
        run_mutants(mutants, slots)
        check_kills(slots[0], mutants, timeout=10 * options.timeout)
    sys.stdout.write(report(mutants))
    if options.json:
        results = {"tree": str(tree), "seed": options.seed, "packages": summarize(mutants)}
        results["mutants"] = [asdict(mutant) for mutant in sorted(mutants)]
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
