"""Names of secrets: of fields, options, variables, headers and parameters."""

from __future__ import annotations

import re

# Where a listing goes on is no secret, though it is called a token.
_OF_A_PAGE = r"(?:next[-_]?|(?:next[-_]?)?page[-_]?|continuation[-_]?)token(?![\w-])"

TELLING = (
    rf"(?!{_OF_A_PAGE})"
    r"(?:(?:[\w-]{1,40}[-_])?(?:"
    r"(?:api|access|account|auth|client|(?:en|de)cryption|master|private|secret|shared[-_]?access|signing|storage"
    r"|subscription|fernet)[-_ ]?key|"
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
