"""Characters that nobody sees: they may stand within the name of a secret, or between it and its value.

All are removed before a text is masked. A text that was coloured for a terminal has no colours afterwards.
"""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)"  # OSC: titles and links of a terminal
    r"|\x1b[PX^_][^\x1b\n]{0,2000}\x1b\\"  # strings of other kinds
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours and moves of the cursor
    r"|\x1b[ -/]*[0-~]"
)
# As JSON, Python and shells write them: in the repr() of a subprocess's output, for example.
_WRITTEN = re.compile(r"\\(?:x1b|u001b|033)\[[0-?]*[ -/]*[@-~]", re.IGNORECASE)
_WRITTEN_BEGINNINGS = ("\\x1b[", "\\u001b[", "\\033[", "\\x1B[", "\\u001B[")

# Sequences that begin with one character, also a soft hyphen; within UTF-8 that was read as Latin-1, these characters
# follow others beyond ASCII. Each alternative begins with what is searched for, which is fast.
_BEYOND_ASCII = re.compile(
    "\x9b(?<![\x80-\xff]\x9b)[0-?]*+[ -/]*+[@-~]"
    "|\x9d(?<![\x80-\xff]\x9d)[^\x07\x1b\x9c\n]{0,2000}+[\x07\x9c]"
    "|\xad(?<![\x80-\xff]\xad)"
    # Without width, and what turns the direction of writing. What joins letters stays between those that it joins.
    "|[\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
    "|[\u200c\u200d](?<=[!-~].)[\u200c\u200d]*+(?=[!-~])"
)


def without_controls(text: str) -> str:
    """Return the text without what steers a terminal, or has no width."""
    if "\x1b" in text:
        text = _SEQUENCES.sub("", text)
    if "\\" in text and any(beginning in text for beginning in _WRITTEN_BEGINNINGS):
        text = _WRITTEN.sub("", text)
    return text if text.isascii() else _BEYOND_ASCII.sub("", text)
