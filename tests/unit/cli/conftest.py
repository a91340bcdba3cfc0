"""The command line in a directory of its own: called in this process, in another one, or on a terminal."""

from __future__ import annotations

import os
import pty
import re
import shlex
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

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_VARYING = {
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{8}\b": "RUN",
    r"just now|[\d.]+ (s|min) ago": "AGO",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "WHEN",
    r"[\d.]+ s\b": "SPAN",
    r"[\d,]+ rows/s": "SPEED",
    r'File "[^"]*/': 'File "',
    r"─+": "─",
    r" +": " ",
}


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The plain rows of a pipe, without their header."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]

    @property
    def sentence(self) -> str:
        """The one sentence that a failed command says."""
        assert self.err.startswith("redrive: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("redrive: ").rstrip("\n")


def _screen(heard: str) -> str:
    """What a terminal shows in the end: lines that were drawn and erased are gone."""
    shown, row = [""], 0
    for part in re.findall(r"\x1b\[[\d;?]*[a-zA-Z]|\x1b\].*?\x07|[\r\n]|[^\x1b\r\n]+|\x1b", heard):
        if part == "\n":
            row += 1
            shown += [""] * (row == len(shown))
        elif part == "\x1b[2K":
            shown[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not re.match(r"\x1b\[[\d;?]*[a-zA-Z]|\r", part):
            shown[row] += part
    return "\n".join(shown)


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
    """Call the command line as a process of its own."""

    def spawn(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "redrive.cli", *map(str, words)]
        return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 100, **options}, check=False)

    return spawn


@pytest.fixture
def terminal(here: Path) -> Callable[..., Answer]:
    """Call the command line on a terminal; what is typed is answered by `keys`."""

    def terminal(*words: object, columns: int = 100, keys: str = "", **environment: str) -> Answer:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "redrive.cli", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1", **environment},
        )
        os.close(theirs)
        os.write(ours, keys.encode())
        heard = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not part:
                break
            heard += part
        os.close(ours)
        return Answer(process.wait(100), _screen(heard.decode()), "")

    return terminal


def _settled(text: str) -> list[str]:
    """Output without what differs from run to run."""
    for pattern, name in _VARYING.items():
        text = re.sub(pattern, name, text)
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def follow(here: Path, terminal: Callable[..., Answer]) -> Callable[..., list[str]]:
    """Do what a section of the page does: its files, its programs, its commands, each with the output it shows."""

    def follow(title: str) -> list[str]:
        section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
        done = []
        for language, block in _BLOCK.findall(section):
            if language == "python" and (file := _FILE.match(block)):
                (here / file[1]).write_text(block)
            elif language == "python":
                subprocess.run([sys.executable, "-W", "error", "-c", block], check=True)
            for example in re.split(r"^\$ redrive ", block, flags=re.MULTILINE)[1:] if language == "text" else ():
                line, _, output = example.partition("\n")
                command, _, code = line.partition("  # exit code ")
                answer = terminal(*shlex.split(command), columns=110)
                assert (command, answer.code) == (command, int(code or 0)), answer.out
                assert _settled(answer.out) == _settled(output.rstrip("\n")), command
                done.append(command)
        return done

    return follow
