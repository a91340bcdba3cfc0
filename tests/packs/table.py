"""The table of errors: read from `expected.toml`, obtained from the real library, and judged by redrive."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from redrive import Verdict, classify
from tests.packs import http_clients, local_failures, wire_clients  # noqa: F401  they register what they provoke
from tests.packs.http_clients import CLIENTS, patient
from tests.packs.local_failures import SCENES
from tests.support import fault_server

HERE = Path(__file__).parent

REFUSED = '{"message": "refused", "error": {"message": "refused", "type": "refused"}}'
"""A body with the parts that clients look for, and nothing that decides."""


class Case(NamedTuple):
    """One row of the table."""

    library: str
    failure: str
    expected: str
    """The kind of verdict that an experienced engineer expects."""

    @property
    def key(self) -> tuple[str, str]:
        return self.library, self.failure

    @property
    def constructed(self) -> bool:
        """Whether the failure is an expression that makes the error from the library's own class."""
        return bool(re.match(r"[\w.]+\(", self.failure))


def read_cases() -> list[Case]:
    """Every row of `expected.toml`; `like` adds the rows of a shared table, which the library's own override."""
    tables = tomllib.loads((HERE / "expected.toml").read_text())
    shared = tables.pop("shared")
    cases = []
    for library, rows in tables.items():
        names = rows.pop("like", [])
        every = {failure: kind for name in names for failure, kind in shared[name].items()} | rows
        cases += [Case(library, failure, kind) for failure, kind in every.items() if kind]
    return cases


class Argued(NamedTuple):
    """The verdict of redrive where it differs, and the reason."""

    got: str
    why: str


def read_argued() -> dict[tuple[str, str], Argued]:
    """Where redrive differs, by library and failure."""
    tables = tomllib.loads((HERE / "argued.toml").read_text())
    return {(library, failure): Argued(**row) for library, rows in tables.items() for failure, row in rows.items()}


PROBE_MODULES = {"azure": "azure.core", "google.api_core": "google.api_core", "snowflake": "snowflake.connector"}


def is_installed(library: str) -> bool:
    """Whether the library can be imported here; nothing of it is imported but the packages above it."""
    try:
        return importlib.util.find_spec(PROBE_MODULES.get(library, library)) is not None
    except ImportError:
        return False


def obtain(case: Case) -> object:
    """The error, or the response where the client raises nothing."""
    with warnings.catch_warnings(action="ignore"):
        if case.constructed:
            return _construct(case.failure)
        if scene := SCENES.get((case.library, case.failure)):
            return _caught(scene)
        # Where an answer comes, it must not be taken for a timeout.
        answered = case.failure.startswith(("HTTP", "answer", "response", "greets"))
        with patient() if answered else nullcontext(), fault(case.failure) as port:
            return _caught(lambda: CLIENTS[case.library](port))


def judge(case: Case) -> Verdict:
    """Return the verdict of redrive for the failure of a row."""
    failure = obtain(case)
    assert failure is not None, f"{case.library} did not fail: {case.failure}"
    return classify(failure)


def fault(name: str) -> AbstractContextManager[int]:
    """The port that fails in this way."""
    if name == "closed port":
        return fault_server.closed_port()
    if match := re.fullmatch(r"HTTP (\d+)(?:, (Retry-After): (\d+))?(?:, (.*))?", name):
        status, header, seconds, body = match.groups()
        headers = {header: seconds} if header else {}
        return fault_server.serving(fault_server.answering(int(status), headers, (body or REFUSED).encode()))
    if match := re.fullmatch(r"answers (.*)", name):
        parts = [part.encode() + b"\r\n" for part in match[1].split(" / ")]
        return fault_server.serving(fault_server.saying(b"", *parts))
    if match := re.fullmatch(r"greets (.*)", name):
        greeting, *answers = [part.encode() + b"\r\n" for part in match[1].split(" / ")]
        return fault_server.serving(fault_server.saying(greeting, *answers))
    return fault_server.serving(_TALKS[name])


_TALKS = {
    "connection reset": fault_server.reset,
    "timeout": fault_server.stay_silent,
    "connection closed": fault_server.hang_up,
    "response truncated": fault_server.answering(200, body=b'{"items": [1,', missing=100),
}


def _caught(action) -> object:
    try:
        return action()
    except Exception as error:
        return error


class _Modules(dict[str, object]):
    """Names in an expression: modules, imported when they are met."""

    def __missing__(self, name: str) -> object:
        if name == "_Error":  # what an error of oracledb carries; its module is hidden
            return importlib.import_module("oracledb.errors")._Error
        try:
            return importlib.import_module(name)
        except ImportError:
            raise KeyError(name) from None  # a builtin, then


def _construct(expression: str) -> object:
    # `a.b.C(…)` needs `a.b` imported before the attribute is looked up.
    for dotted in re.findall(r"[A-Za-z_][\w.]*(?=\()", expression):
        *packages, _ = dotted.split(".")
        for end in range(1, len(packages) + 1):
            try:
                importlib.import_module(".".join(packages[:end]))
            except ModuleNotFoundError:
                break
    return eval(expression, {"__builtins__": __builtins__}, _Modules())
