"""The command line in a directory of its own: called in this process, in another one, or on a terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import redrive
from redrive.cli.app import app
from tests.support.terminal import on_a_terminal
from tests.support.warm_python import warm_python


class Answer(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The plain rows of a pipe, without their header."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]

    @property
    def sentence(self) -> str:
        """The one sentence that a failed command prints."""
        assert self.err.startswith("redrive: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("redrive: ").rstrip("\n")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that tests copy."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    with redrive.connect(path):
        pass
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: empty, with no settings, and forgotten afterwards."""
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def store(here: Path, empty_store: Path) -> Iterator[redrive.Store]:
    """The default store of the working directory."""
    (here / ".redrive").mkdir()
    shutil.copy(empty_store, here / ".redrive" / "redrive.db")
    with redrive.connect() as opened:
        yield opened


@pytest.fixture
def put(store: redrive.Store) -> Callable[..., Any]:
    """Put letters by number: distinct keys, one cause for each `error`."""

    def put(count: int = 1, *, start: int = 1, error: str = "fee: not a number", **options: Any) -> Any:
        options.setdefault("pipeline", "vendor")
        return store.dlq.put_many(
            (
                redrive.NewLetter({"id": f"D-{n}", "fee": "N/A"}, error, key=f"D-{n}", position=n)
                for n in range(start, start + count)
            ),
            **options,
        )

    return put


@pytest.fixture
def run(here: Path) -> Callable[..., Answer]:
    """Call the command line in this process; what it prints goes to a pipe."""

    def run(*words: object, input: str | bytes | None = None) -> Answer:
        result = CliRunner().invoke(app, [str(word) for word in words], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def spawn(here: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call the command line as a process of its own, forked from an interpreter that has imported it."""

    def spawn(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = warm_python("-W", "error", "-m", "redrive.cli", *words)
        return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 100, **options}, check=False)

    return spawn


@pytest.fixture
def terminal(here: Path) -> Callable[..., Answer]:
    """Call the command line on a terminal; what is typed is answered by `keys`."""

    def terminal(*words: object, columns: int = 100, keys: str = "", **environment: str) -> Answer:
        command = warm_python("-m", "redrive.cli", *words)
        environ = {**os.environ, **environment}
        return Answer(*on_a_terminal(command, columns=columns, keys=keys, environ=environ), "")

    return terminal
