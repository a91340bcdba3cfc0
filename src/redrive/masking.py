"""Keeps secrets out of everything a person or a log can see."""

from __future__ import annotations

import re

MASK = "***"

_NAMES = (
    r"(?:api[-_]?key|access[-_]?key|subscription[-_]?key|key|token|access[-_]?token|refresh[-_]?token|id[-_]?token|"
    r"secret|client[-_]?secret|password|passwd|pwd|signature|sig|auth|authorization|credential|x-amz-[a-z-]+)"
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Authorization: Bearer abc / Basic abc
    (re.compile(r"\b(bearer|basic|digest|apikey)\s+[A-Za-z0-9._~+/=:-]{4,}", re.IGNORECASE), rf"\1 {MASK}"),
    # scheme://user:password@host
    (re.compile(r"(\w+://[^\s/:@]+):[^\s/@]+@"), rf"\1:{MASK}@"),
    # ?api_key=abc&…, password=abc (also libpq keyword strings)
    (re.compile(rf"\b({_NAMES})=[^\s&'\",;]+", re.IGNORECASE), rf"\1={MASK}"),
    # "api_key": "abc"
    (re.compile(rf"""(["']{_NAMES}["']\s*:\s*)(["'])(?:\\.|(?!\2).)*\2""", re.IGNORECASE), rf"\1\2{MASK}\2"),
)


def mask(text: str) -> str:
    """The text with whatever looks like a credential replaced."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def last_four(secret: str) -> str:
    """What may be shown of a key."""
    return secret[-4:]
