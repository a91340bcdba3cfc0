"""Colours by meaning, the same on every screen."""

from __future__ import annotations

import os
from typing import IO, Any

FAILURE = "red"
WARNING = "yellow"
SUCCESS = "green"
HINT = "dim"
COMMAND = "cyan"

_CODES = {FAILURE: "31", WARNING: "33", SUCCESS: "32", HINT: "2", COMMAND: "36", "bold": "1"}
_MEANINGS = {
    **dict.fromkeys(("p1", "failed", "aborted", "dead_letter", "upstream_failed", "problem"), FAILURE),
    **dict.fromkeys(("p2", "pending", "retrying", "held", "stopped", "escalated", "open", "waiting"), WARNING),
    **dict.fromkeys(("success", "complete", "resolved", "reprocessed", "sent", "closed", "ok"), SUCCESS),
    **dict.fromkeys(("skipped", "discarded", "abandoned", "ended"), HINT),
    "running": COMMAND,
}


def style_of(value: Any) -> str:
    """Return the style of a status, a state or a severity; none where it has no meaning of its own."""
    return _MEANINGS.get(str(value).lower(), "")


def style_of_circuit(state: Any) -> str:
    """Return the style of a circuit: an open one is a failure, not something that waits."""
    return {"open": FAILURE, "half_open": WARNING, "closed": SUCCESS}.get(str(state), "")


def paint(text: str, style: str, stream: IO[str]) -> str:
    """Return the text in a style, where the stream is a terminal that shows colours."""
    code = _CODES.get(style)
    if code is None or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
