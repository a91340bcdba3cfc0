"""Secrets among the arguments of a command that is given as a list: `['tool', '--password', 'abc']`.

A failed subprocess shows its command so, in its error, and JSON has it so. What stands behind the option is masked.
"""

from __future__ import annotations

import re
from typing import Final

from redrive._internal.masking.lazy_pattern import MASK, LazyPattern
from redrive._internal.masking.names import TELLING, may_name_a_secret

_SECRET_OPTION: Final = rf"--?(?:{TELLING}|auth|pass(?:in|out)?)"
_USER_OPTION: Final = r"(?:-[A-Za-z]{0,6}u|-[aU]|--(?:proxy-?)?user(?:name)?|--auth)"

# A user is an account, and not an id (`docker run -u 1000:1000`) or the beginning of a URL.
_ACCOUNT: Final = r"(?![0-9]{1,10}:[0-9]{1,10}(?![^'\"\\]))(?!\w{1,20}://)[^\s:%'\"\\]{1,100}[:%](?=[^'\"])"

# `-p` is a port for some and "with parents" for others. A password is neither a number, nor a path, nor `8080:80`.
_LIKE_A_PASSWORD: Final = (
    r"(?=[^'\"\\/\s]{6,100}\\?['\"])(?=[^'\"]{0,99}[0-9])(?=[^'\"]{0,99}[A-Za-z])"
    r"(?![^'\"]{0,99}:[0-9]{1,5}\\?['\"])"
)

_REST: Final = r"(?:\\{3}['\"]|(?!\3)(?:\\.|[^\\]))*+(?:\3|\\?\Z)"
_AND_QUOTE: Final = r"\2\s*+,\s*+b?)(\\?['\"])"

# ['--password', 'abc'], but not ['--password', '--verbose']
_SECRET = LazyPattern(
    rf"((\\?['\"]){_SECRET_OPTION}{_AND_QUOTE}(?!--?[a-z]|\3){_REST}",
    re.IGNORECASE | re.DOTALL,
)
# ['-u', 'user:abc']
_USER = LazyPattern(rf"((\\?['\"]){_USER_OPTION}{_AND_QUOTE}({_ACCOUNT}){_REST}", re.DOTALL)
# ['--user=user:abc'], ['-uuser:abc']
_JOINED_USER = LazyPattern(
    rf"((\\?['\"])(?:-u(?!rl)|--(?:proxy-?)?user(?:name)?=){_ACCOUNT})(?:(?!\2)(?:\\.|[^\\]))*+(?:\2|\\?\Z)", re.DOTALL
)
# ['-p', 'abc123']
_SHORT = LazyPattern(rf"((\\?['\"])-p{_AND_QUOTE}{_LIKE_A_PASSWORD}{_REST}", re.DOTALL)
# -Password abc1, as PowerShell has it
_SINGLE_DASH = LazyPattern(
    rf"(?<=\s)(-{TELLING}[ \t]{{1,3}})(?:'[^'\n]++'|\"[^\"\n]++\"|(?!-)(?=[^\s'\"]{{0,200}}[0-9])[^\s'\",;)]++)",
    re.IGNORECASE,
)

# '--password' 'abc', as a shell takes it
_QUOTED_OPTION = LazyPattern(
    rf"((\\?['\"]){_SECRET_OPTION}\2[ \t]{{1,3}})(\\?['\"])(?!-)(?:(?!\3)[^\n])*+(?:\3|(?=\n|\Z))", re.IGNORECASE
)

_OPTION = re.compile(rf"{_SECRET_OPTION}", re.IGNORECASE)
_OF_A_USER = re.compile(_USER_OPTION)
_USER_IN_A_WORD = re.compile(rf"((?:-u(?!rl)|--(?:proxy-?)?user(?:name)?=){_ACCOUNT}).*", re.DOTALL)
_OF_A_USERS_VALUE = re.compile(rf"({_ACCOUNT}).*", re.DOTALL)
_PASSWORD = re.compile(r"(?!.{0,99}:[0-9]{1,5}\Z)(?=[^/\s]{6,100}\Z)(?=.{0,99}[0-9])(?=.{0,99}[A-Za-z])", re.DOTALL)


def mask_arguments(text: str) -> str:
    """Return the text without the secrets of commands that are shown as lists."""
    if "'-" in text or '"-' in text:
        text = _SECRET.sub(rf"\1\3{MASK}\3", text)
        text = _USER.sub(rf"\1\3\4{MASK}\3", text)
        text = _JOINED_USER.sub(rf"\1{MASK}\2", text)
        text = _SHORT.sub(rf"\1\3{MASK}\3", text)
    if "' '" in text or '" "' in text or "' \"" in text or "\" '" in text:
        text = _QUOTED_OPTION.sub(rf"\1\3{MASK}\3", text)
    if " -" in text and may_name_a_secret(text.lower()):
        text = _SINGLE_DASH.sub(rf"\1{MASK}", text)
    return text


def mask_argument(value: str, before: object) -> str:
    """Return what may be shown of a list's item, by what it is and what stands before it."""
    if value.startswith("-"):
        return _USER_IN_A_WORD.sub(rf"\1{MASK}", value)
    if not isinstance(before, str) or not before.startswith("-") or not value:
        return value
    if _OPTION.fullmatch(before):
        return MASK
    if _OF_A_USER.fullmatch(before):
        return _OF_A_USERS_VALUE.sub(rf"\1{MASK}", value)
    return MASK if before == "-p" and _PASSWORD.match(value) else value
