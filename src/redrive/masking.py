"""Keeps secrets out of everything a person or a log can see."""

from __future__ import annotations

import re

MASK = "***"

# `key` alone is Google's query parameter; a `sort_key` or `source_key` is no secret.
_NAMES = (
    r"(?:key|(?:[\w-]{1,40}[-_])?(?:"
    r"(?:api|access|account|auth|client|encryption|private|secret|shared[-_]access|storage|subscription)[-_]?key|"
    r"token|secret|passwd|password|passphrase|pwd|credentials?|signature)|"
    r"\w{0,20}(?:apikey|token|secret|password)|sig|auth|authorization|cookie|set-cookie|x-amz-[a-z-]+)"
)

# What follows is not itself a name whose secret is still to come, as in "bearer\nX-Api-Key: abc": to take the name for
# the secret would leave the secret standing.
_NO_NAME = r"""(?![\w-]+(?:\s?:\s|\s?=\s?['"]))"""

# What must be in a text, in lower case, for a pattern to have a chance. Most messages have none of it, and looking for
# a word is a hundred times as fast as a pattern.
_SECRET_WORDS = ("key", "token", "secret", "pass", "pwd", "cred", "sig", "auth", "cookie", "x-amz")
# Every name that _NAMES takes ends so, but Amazon's.
_NAME_ENDS = (
    *("key", "token", "secret", "passwd", "password", "passphrase", "pwd", "credential", "credentials"),
    *("signature", "sig", "auth", "authorization", "cookie"),
)
_SHAPES = ("eyj", "akia", "asia", "aiza", "gh", "github_pat", "glpat", "sk", "rk", "pk", "xox")

_PATTERNS: tuple[tuple[tuple[tuple[str, ...], ...], re.Pattern[str], str], ...] = (
    # -----BEGIN PRIVATE KEY----- …
    (
        (("private key",),),
        re.compile(
            r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----).*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        rf"\1 {MASK}",
    ),
    # Authorization: Bearer abc / Basic abc
    (
        (("bearer", "basic", "digest", "apikey"),),
        re.compile(rf"\b(bearer|basic|digest|apikey)\s+{_NO_NAME}[A-Za-z0-9._~+/=:-]{{4,}}", re.IGNORECASE),
        rf"\1 {MASK}",
    ),
    # scheme://user:password@host, and scheme://token@host
    (
        (("://",), ("@",)),
        re.compile(r"\b([a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"]{0,200}):[^\s/'\"]{1,500}@", re.IGNORECASE),
        rf"\1:{MASK}@",
    ),
    ((("://",), ("@",)), re.compile(r"\b(https?://)[^\s/:@'\"]{16,500}@", re.IGNORECASE), rf"\1{MASK}@"),
    # password='a b', password="a b"
    (
        (("=",), _SECRET_WORDS),
        re.compile(rf"""(?<![\w-])({_NAMES}\s?=\s?)(['"])(?:\\.|(?!\2).)*\2""", re.IGNORECASE),
        rf"\1\2{MASK}\2",
    ),
    # ?api_key=abc&…, password=abc (also libpq keyword strings)
    (
        (("=",), _SECRET_WORDS),
        re.compile(rf"(?<![\w-])({_NAMES})={_NO_NAME}[^\s&'\",;]+", re.IGNORECASE),
        rf"\1={MASK}",
    ),
    # "api_key": "abc", also where the JSON is itself inside a JSON string
    (
        ((":",), ('"', "'"), _SECRET_WORDS),
        re.compile(
            rf"""((\\?["']){_NAMES}\2\s*:\s*)(\\?["'])(?:(?!\3)(?:\\.|[^\\]))*(?:\3|\Z)""", re.IGNORECASE | re.DOTALL
        ),
        rf"\1\3{MASK}\3",
    ),
    # X-Api-Key: abc, as a line of headers
    (
        ((":",), ("key", "token", "auth", "cookie")),
        re.compile(
            r"(?<![\w-])((?:x-)?api-?key|x-[a-z-]{0,30}token|authorization|(?:set-)?cookie)(\s*:[ \t]*)"
            rf"{_NO_NAME}[^\s'\"{{\[]{{8,}}",
            re.I,
        ),
        rf"\1\2{MASK}",
    ),
    # Tokens that show by their shape what they are.
    (
        (_SHAPES,),
        re.compile(
            r"\b(?:eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
            r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
            r"|AIza[\w-]{35}"
            r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
            r"|(?:sk|rk|pk)[-_][\w-]{16,}"
            r"|xox[abeprs]-[\w-]{10,})"
        ),
        MASK,
    ),
)


# Most messages have none of all this.
_ANY = (*_SECRET_WORDS, "bearer", "basic", "digest", "://", *_SHAPES)


def mask(text: str) -> str:
    """The text with whatever looks like a credential replaced."""
    lowered = text.lower()
    if not text.isascii():
        lowered = lowered.replace("ſ", "s").replace("ı", "i")  # as a pattern that ignores case has it
    for word in _ANY:
        if word in lowered:
            break
    else:
        return text
    for needs, pattern, replacement in _PATTERNS:
        for words in needs:
            for word in words:  # a generator for any() would cost more than the search
                if word in lowered:
                    break
            else:
                break
        else:
            if "=" not in needs[0] or _names_a_secret(lowered):
                text = pattern.sub(replacement, text)
    return text


def _names_a_secret(lowered: str) -> bool:
    """Whether some `=` follows what may be a secret's name."""
    before = lowered.split("=")[:-1]
    return any(part.rstrip().endswith(_NAME_ENDS) or "x-amz-" in part for part in before)


def last_four(secret: str) -> str:
    """What may be shown of a key."""
    return secret[-4:]
