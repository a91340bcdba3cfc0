"""The output of a command on a real terminal, without what it drew and erased."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PART = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]|\x1b\].*?\x07|[\r\n]|[^\x1b\r\n]+|\x1b")


def on_a_terminal(
    command: Sequence[str | Path],
    *,
    columns: int,
    keys: str = "",
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[int, str]:
    """Run a command, type these keys; its exit code, and what is to be read on the screen in the end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"},
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
    return process.wait(100), shown(heard.decode())


def shown(heard: str) -> str:
    """The screen after all that was written: lines that were drawn and erased are gone."""
    lines, row = [""], 0
    for part in _PART.findall(heard):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not re.match(r"\x1b\[[\d;?]*[a-zA-Z]|\r", part):
            lines[row] += part
    return "\n".join(lines)
