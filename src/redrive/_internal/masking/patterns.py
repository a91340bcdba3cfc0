"""What all masking shares: names of secrets, patterns compiled when needed, removal of control characters."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

# The position in a listing is no secret, though it is called a token.
_OF_A_PAGE = r"(?:next[-_]?|(?:next[-_]?)?page[-_]?|continuation[-_]?)token(?![\w-])"

TELLING = (
    rf"(?!{_OF_A_PAGE})"
    r"(?:(?:[\w-]{1,40}[-_])?(?:"
    r"(?:api|access|account|auth|client|(?:en|de)cryption|master|private|secret|shared[-_]?access|signing|storage"
    r"|subscription|symmetric|fernet)[-_ ]?key|"
    r"token|secret|passwd|password[0-9]{0,2}|pass[-_ ]?phrase|passcode|pwd[0-9]{0,2}|pw|"
    r"(?:mfa|otp)[-_]?code|credentials?|signature)|"
    r"\w{0,20}(?:(?:access|api|encryption|master|private|secret|signing)key|token|secret|passwd|password|pwd|signature)|"
    r"otp|cvv2?|cvc2?|pin|jwt|bearer|"  # as whole names alone: `pin_count` and `shipping` are others
    r"(?:admin|db|database|ftp|mail|pg|root|smtp|ssh|user)[-_]?pass|"
    r"(?:proxy-)?authorization|cookie|set-cookie|x-amz-[a-z-]+)"
)
# `key` alone is Google's query parameter; a `sort_key` or `source_key` is no secret. Neither is a `second_pass`.
NAMES = rf"(?:key|sig|auth|pass|(?-i:[A-Z0-9_]{{1,40}}_PASS)|{TELLING})"
SECRET_FIELD = re.compile(rf"sig|auth|pass|{TELLING}", re.IGNORECASE)
SECRET_FIELDS = re.compile(rf"(?!x-amz-)(?:{TELLING})s", re.IGNORECASE)

# What must be in a text, in lower case, for a pattern to have a chance. Most messages have none of it, and looking for
# a word is a hundred times as fast as a pattern.
SECRET_WORDS = (
    *("key", "token", "secret", "pass", "pw", "cred", "sig", "auth", "cookie", "x-amz"),
    *("otp", "cvv", "cvc", "pin", "jwt", "bearer", "mfa"),
)
# Every name that NAMES takes ends so, but Amazon's.
NAME_ENDS = (
    *("key", "token", "secret", "passwd", "password", "phrase", "passcode", "pwd", "pw", "credential", "credentials"),
    *("signature", "sig", "auth", "authorization", "cookie", "pass", "otp", "cvv", "cvv2", "cvc", "cvc2", "pin"),
    *("jwt", "bearer", "code"),
)


def may_name_a_secret(lowered: str) -> bool:
    """Return whether a text in lower case has a word that is part of every secret's name."""
    for word in SECRET_WORDS:  # noqa: SIM110 - a generator for any() would cost more than the search
        if word in lowered:
            return True
    return False


def is_secret_name(name: object) -> bool:
    """Return whether a field of this name holds a secret."""
    return isinstance(name, str) and SECRET_FIELD.fullmatch(name) is not None


MASK = "***"


class LazyPattern:
    """A regular expression that is compiled when it is first needed: all of them take 15 ms at every start."""

    def __init__(self, source: str, flags: int = 0) -> None:
        self._source, self._flags = source, flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, ready for use."""
        return re.compile(self._source, self._flags)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Return the text with what matches replaced."""
        return self.compiled.sub(replacement, text)


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
