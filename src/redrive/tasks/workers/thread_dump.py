"""Thread dumps in a task's output: the frames that a task is stuck in, without those that run it. Pure."""

from __future__ import annotations

import re
from pathlib import PurePath

# faulthandler writes the innermost call first.
_BLOCK = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}+.{0,200}\(most recent call first\):\n(?:  .*\n?)+\n?", re.MULTILINE
)
_RUNS_A_TASK = re.compile(
    rf'  File ".*{re.escape(str(PurePath("redrive", "tasks", "workers", "run_task.py")))}", line \d+'
)


def tidy(output: str) -> str:
    """Return the output with dumps cut at the task's function, without duplicates."""
    seen: set[str] = set()

    def shorter(found: re.Match[str]) -> str:
        header, *frames = found[0].rstrip("\n").split("\n")
        own = next((place for place, frame in enumerate(frames) if _RUNS_A_TASK.match(frame)), len(frames))
        block = "\n".join([header, *(frames[:own] or frames)])
        if block in seen:
            return ""
        seen.add(block)
        return f"{block}\n"

    return _BLOCK.sub(shorter, output)


def split(output: str) -> tuple[str, str]:
    """Return the task's own output and the dumps after it."""
    found = _BLOCK.search(output)
    return (output, "") if found is None else (output[: found.start()], output[found.start() :])
