"""Find every regular expression of the package, and build the texts that make a slow one show.

A pattern is slow where it tries the same characters again: an unclosed quote, nested repeats, or a beginning that
occurs often and never ends. So for each repeat in a pattern the texts hold what leads to it, many times what it
repeats, and then something that it does not expect; and what leads to it, many times.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import redrive
from redrive._internal.masking.patterns import LazyPattern

SOURCE = Path(redrive.__file__).parent
_FUNCTIONS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
_CALLED = re.compile(rf"\.(?:{'|'.join(_FUNCTIONS)})\b")
_ANCHORED = {"match", "fullmatch"}
_INTERESTING = "a0\\'\" -_.:=,<(/\t@eAx1+%\n{["
_MOST_TEXTS = 16


@dataclass(frozen=True)
class Found:
    """A regular expression and where it is written."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]

    def run(self, text: str) -> None:
        """Use the pattern on the text as the package does."""
        subject = text.encode("latin-1", "replace") if isinstance(self.pattern.pattern, bytes) else text
        if self.methods and self.methods <= _ANCHORED:
            for method in self.methods:
                getattr(self.pattern, method)(subject)
        else:
            for _ in self.pattern.finditer(subject):
                pass


def modules() -> Iterator[tuple[str, Path]]:
    for module in pkgutil.walk_packages([str(SOURCE)], "redrive."):
        if module.name.rpartition(".")[2] not in {"__main__", "env"} and ".versions." not in module.name:
            path = SOURCE.parent.joinpath(*module.name.split("."))
            yield module.name, path / "__init__.py" if module.ispkg else path.with_suffix(".py")


def patterns() -> tuple[list[Found], list[str]]:
    """All patterns of the package, and the modules in which some are put together at run time."""
    texts = {name: path.read_text() for name, path in modules()}
    trees = {name: ast.parse(text if _CALLED.search(text) else "") for name, text in texts.items()}
    uses = _uses(trees)
    found: dict[tuple[str, Any], Found] = {}
    built = set()
    for name, tree in trees.items():
        module = name.removeprefix("redrive.")
        for node, target in _calls(tree):
            function = node.func.attr  # type: ignore[attr-defined]
            try:
                pattern = _evaluated(node, name, function)
            except NameError:
                built.add(module)
                continue
            methods = {function} if function != "compile" else uses.get((name, target or ""), set())
            found[module, pattern] = Found(f"{module}:{target or node.lineno}", pattern, frozenset(methods))
        if ".programs." in name:  # to import it is to run it: it opens a store and starts a service
            continue
        for variable, value in vars(importlib.import_module(name)).items():
            for pattern in _held(value):
                found.setdefault((module, pattern), Found(f"{module}:{variable}", pattern, frozenset({"search"})))
    places = {one.pattern: one for one in reversed(found.values())}  # of one that is imported, where it is written
    return [one for one in found.values() if places[one.pattern] is one or one.methods != {"search"}], sorted(built)


def _held(value: Any) -> Iterator[re.Pattern[Any]]:
    """The patterns within a value of a module, such as a table of them."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, LazyPattern):
        yield value.compiled
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _held(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _held(inner)


def _uses(trees: dict[str, ast.Module]) -> dict[tuple[str, str], set[str]]:
    """By the module and the name of a pattern, the methods that are called on it, also where it is imported."""
    uses: dict[tuple[str, str], set[str]] = {}
    for module, tree in trees.items():
        written_in: dict[str, str] = {}
        called = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                written_in.update((alias.name, node.module) for alias in node.names)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _FUNCTIONS:
                called.append((node.value.id, node.attr))
        for name, method in called:
            uses.setdefault((written_in.get(name, module), name), set()).add(method)
    return uses


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str | None]]:
    named = {
        id(node.value): node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in _FUNCTIONS
        ):
            yield node, named.get(id(node))


def _evaluated(node: ast.Call, module: str, function: str) -> re.Pattern[Any]:
    flags = [word.value for word in node.keywords if word.arg == "flags"]
    flags += node.args[1:2] if function == "compile" else node.args[3 if function.startswith("sub") else 2 :][-1:]
    call = ast.Call(ast.Attribute(ast.Name("re", ast.Load()), "compile", ast.Load()), [node.args[0], *flags], [])
    code = compile(ast.fix_missing_locations(ast.Expression(call)), module, "eval")
    return eval(code, {**vars(importlib.import_module(module)), "re": re})


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def attacks(pattern: re.Pattern[Any]) -> list[Callable[[int], str]]:
    """Makers of hostile texts of about a given size."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(source, pattern.flags & ~re.LOCALE & ~re.DEBUG if isinstance(pattern.pattern, str) else 0)
    groups: dict[int, str] = {}
    before_and_pump = dict.fromkeys(_repeats(list(tree), "", groups))
    texts: dict[tuple[str, str, str], None] = {}
    for before, pump in before_and_pump:
        texts[before, pump, "\0"] = None
        texts["", before + pump, "\0"] = None
        texts["", before + pump * 12, "\0"] = None
        texts["", before, "\0"] = None
    if len(texts) > _MOST_TEXTS:  # spread over the pattern
        kept = list(texts)
        texts = dict.fromkeys(kept[index * len(kept) // _MOST_TEXTS] for index in range(_MOST_TEXTS))
    return [_maker(*text) for text in texts if text[1]]


def _maker(before: str, pump: str, after: str) -> Callable[[int], str]:
    def make(size: int) -> str:
        return before + pump * max(1, (size - len(before)) // len(pump)) + after

    make.__doc__ = f"{before[:60]!r} + {pump[:60]!r} * n + {after!r}"
    return make


def _repeats(items: list[Any], before: str, groups: dict[int, str]) -> Iterator[tuple[str, str]]:
    """What leads to a repeat, and what it repeats; also within groups, branches and lookarounds."""
    for code, value in items:
        for inner in _inner(code, value):
            yield from _repeats(inner, before, groups)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT) and value[1] > 8:
            for pump in _choices(list(value[2]), groups):
                yield before, pump
        before += _sample([(code, value)], groups)


def _inner(code: Any, value: Any) -> list[list[Any]]:
    if code is codes.SUBPATTERN:
        return [list(value[3])]
    if code is codes.ATOMIC_GROUP:
        return [list(value)]
    if code is codes.BRANCH:
        return [list(branch) for branch in value[1]]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [list(value[1])]
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return [list(value[2])]
    return []


def _choices(items: list[Any], groups: dict[int, str]) -> list[str]:
    """Several texts that the body of a repeat takes."""
    if len(items) == 1:
        code, value = items[0]
        if code in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            return [char for char in _INTERESTING if _takes(code, value, char)][:4] or [_sample(items, groups)]
        if code is codes.BRANCH:
            return [text for branch in value[1] for text in _choices(list(branch), groups)][:6]
        if code is codes.SUBPATTERN:
            return _choices(list(value[3]), groups)
    return [_sample(items, groups)]


def _takes(code: Any, value: Any, char: str) -> bool:
    if code is codes.ANY:
        return char != "\n"
    if code is codes.NOT_LITERAL:
        return ord(char) != value
    inside, negated = False, False
    for kind, what in value:
        if kind is codes.NEGATE:
            negated = True
        elif kind is codes.LITERAL:
            inside |= ord(char) == what
        elif kind is codes.RANGE:
            inside |= what[0] <= ord(char) <= what[1]
        elif kind is codes.CATEGORY:
            inside |= _in_category(what, char)
    return inside != negated


def _in_category(category: Any, char: str) -> bool:
    name = str(category).lower().removeprefix("category_").removeprefix("uni_")
    wanted = not name.startswith("not_")
    kind = name.removeprefix("not_")
    is_of = {"digit": str.isdigit, "space": str.isspace}.get(kind, lambda one: one.isalnum() or one == "_")
    return is_of(char) == wanted


def _sample(items: list[Any], groups: dict[int, str]) -> str:
    """A text that these items take, but for lookarounds."""
    text = ""
    for code, value in items:
        if code is codes.LITERAL:
            text += chr(value)
        elif code in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            text += next((char for char in _INTERESTING if _takes(code, value, char)), _first(value))
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            text += _sample(list(value[2]), groups) * (value[0] or (1 if value[1] > 8 else 0))
        elif code is codes.SUBPATTERN:
            groups[value[0]] = _sample(list(value[3]), groups)
            text += groups[value[0]]
        elif code is codes.ATOMIC_GROUP:
            text += _sample(list(value), groups)
        elif code is codes.BRANCH:
            text += _sample(list(value[1][0]), groups)
        elif code is codes.GROUPREF:
            text += groups.get(value, "")
    return text


def _first(value: Any) -> str:
    kind, what = value[0] if isinstance(value, list) else (None, 0)
    return chr(what if kind is codes.LITERAL else what[0] if kind is codes.RANGE else 0x61)


# ── growth ───────────────────────────────────────────────────────────────────────────────────────────────────────────


_AT_ONCE = 0.02  # seconds; too little to compare
_NOISE = 2  # a growth beyond this is measured again


class TooSlow(Exception):
    """Raised by the CPU timer while a pattern is at work."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Interrupt what runs after so many seconds of CPU time; a loaded machine changes nothing."""

    def stop(*_: object) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def cpu_seconds(run: Callable[[str], object], text: str) -> float:
    began = time.thread_time()
    run(text)
    return time.thread_time() - began


def growth(run: Callable[[str], object], make: Callable[[int], str], *, small: int, large: int, limit: float) -> float:
    """By how much the time grows beyond the size: 1 for linear, large/small for quadratic; infinite beyond the limit.

    The least of several measurements counts, so what else the machine does cannot make a linear one look worse.
    """
    with cpu_limit(limit):
        try:
            for size in (8, 16, 24, 32, 64, 256):  # what is exponential does not get further
                run(make(size))
            text = make(large)
            late = cpu_seconds(run, text)
            if late < _AT_ONCE:
                return 1.0
            early = min(cpu_seconds(run, make(small)) for _ in range(4))
            if late > _NOISE * early * large / small:
                late = min(late, *(cpu_seconds(run, text) for _ in range(2)))
        except TooSlow:
            return float("inf")
    return late / max(early, 1e-6) / (large / small)
