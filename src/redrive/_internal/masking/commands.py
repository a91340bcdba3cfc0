"""Secrets in command lines, which the error of a failed subprocess shows: `mysql -phunter2`, `["--password", "abc"]`.

`-p` alone decides nothing: it is a port for psql and "with parents" for mkdir. So the program's name decides. In a
list of arguments, the item behind a secret option is masked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from redrive._internal.masking.patterns import MASK, TELLING, LazyPattern, may_name_a_secret

# A pass of a compiler is none.
_PASS: Final = r"(?!(?:dry|first|last|multi|one|second|single|two)-)(?:[\w-]{1,30}-)?pass"
_SECRET_OPTION: Final = (
    rf"--?(?:{TELLING}|auth|pass(?:in|out)|{_PASS}|\w{{0,10}}(?:store|key)pass|[\w-]{{1,30}}-bearer)"
)
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

# -storepass abc, --sftp-pass abc, --oauth2-bearer abc; -Dpassword=abc, -oPassword=abc, --db-pass=abc
_OTHER_OPTION = LazyPattern(
    rf"""(?<![\w-])(-(?:\w{{0,10}}(?:store|key)pass|-{_PASS}|-[\w-]{{1,30}}-bearer)[ \t]{{1,5}}|--{_PASS}="""
    rf"""|-[DoPX](?:\w{{1,40}}\.){{0,8}}{TELLING}=)(?:'[^'\n]*+'?|"[^"\n]*+"?|(?![-'"])[^\s'",;)]++)""",
    re.IGNORECASE,
)
# ENV DB_PASSWORD abc, in a Dockerfile; setenv DB_PASSWORD abc; set -gx DB_PASSWORD abc
_VARIABLE = LazyPattern(
    rf"""(?<![\w-])((?:ENV|ARG|setenv|set(?:[ \t]{{1,5}}-[a-zA-Z]{{1,5}}){{1,3}})[ \t]{{1,5}}"""
    rf"""(?i:{TELLING}|\w{{1,40}}_PASS)[ \t]{{1,5}})(?:'[^'\n]*+'?|"[^"\n]*+"?|[^\s'",;)=]++)"""
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


_OF_A_VARIABLE = ("ENV ", "ARG ", "setenv ", "set -")


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
    if ("pass" in text or "-bearer" in text or "=" in text) and "-" in text:
        text = _OTHER_OPTION.sub(rf"\1{MASK}", text)
    if any(word in text for word in _OF_A_VARIABLE) and may_name_a_secret(text.lower()):
        text = _VARIABLE.sub(rf"\1{MASK}", text)
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


# Between words of a command line, also where it is shown as a Python or JSON list.
_NEXT = r"""(?:\s{1,3}|['"],\s?['"])"""

# By the option that takes the password. `mysql -p x` asks for a password and opens the database x, but whoever writes
# it often means a password.
_PROGRAMS = {
    "p": r"mysql\w*|mariadb(?:-\w+)*|mongo\w*|sshpass|cqlsh|cypher-shell|beeline|7za?"
    rf"|(?:docker|podman|az){_NEXT}login|helm{_NEXT}registry{_NEXT}login",
    "P": r"sqlcmd|bcp|osql|tsql|zip|unzip|mosquitto_(?:pub|sub)",
    "a": r"(?:redis|valkey|keydb)-cli",
    "w": r"ldap(?:add|compare|delete|modify|passwd|search|whoami)",
}
_PROGRAM = rf"(?<![\w.-])(?i:{'|'.join(f'(?P<{option}>{names})' for option, names in _PROGRAMS.items())})"
_PROGRAM += r"(?i:\.exe)?(?![\w-])"

# One of these is in every text that names a program of the table.
_NAMES = (
    *("mysql", "mariadb", "mongo", "sshpass", "cqlsh", "cypher-shell", "beeline", "7z", "login", "sqlcmd", "bcp"),
    *("osql", "tsql", "zip", "mosquitto_", "-cli", "ldap"),
)
_OPTIONS = ("-p", "-a", "-w")

_LIST = LazyPattern(rf"""(?<=['"/]){_PROGRAM}(?=['"],)[^\n]++""")
_LIST_OPTION = LazyPattern(
    r"""(?P<before>(?P<quote>['"])-(?P<option>[pPaw])(?:(?P=quote),\s?(?P<next>['"]))?)"""
    r"""(?:(?(next)(?!(?P=next))|(?!(?P=quote)))(?:\\.|[^\\\n]))++"""
)
_SHELL = LazyPattern(rf"""{_PROGRAM}(?!['"],)[^\n]*+(?:(?<=\\)\n[^\n]*+)*+""")
_SHELL_WORD = LazyPattern(
    rf"{_PROGRAM}"
    r"|(?P<stop>[;&|]|(?<=\s)(?:ssh|scp|sftp|rsync|mkdir|psql)(?=\s))"  # another program, with options of its own
    r"|(?P<before>(?<=\s)-(?P<option>[pPaw])(?:[ \t]{1,3}(?!-)|=)?)"
    r"""(?:'[^'\n]*+'?|"[^"\n]*+"?|[^\s'"<>|&;)]++)"""
    r"""|(?P<quoted>'[^'\n]++'|"[^"\n]++")"""
)


# Between words, where one of them may be quoted alone.
_GAP = r"""(?:\\?['"]\s{0,5},\s{0,20}b?\\?['"]|\s{1,5}\\?['"]?|\\?['"]\s{1,5}\\?['"]?)"""

# Programs that take a user and a password as one word, and `configure set name abc`.
_WORDS = (
    # lftp -u user,abc
    (
        ("lftp",),
        LazyPattern(
            rf"""(\blftp\b(?:[^\n]|(?<=[,\[])\n){{0,300}}?[\s'"](?:-u|--user)(?:{_GAP}|=)?[^\s,'"\\]{{1,100}},)[^\s'"\\]+"""
        ),
    ),
    # sqlplus user/abc@ORCL
    (
        ("sqlplus", "sqlldr", "impdp", "expdp", "rman"),
        LazyPattern(
            r"""(\b(?:sqlplus|sqlldr|impdp|expdp|rman)\b(?:[^\n]|(?<=[,\[])\n){0,300}?[\s'"=][\w$#.-]{1,100}/)"""
            r"""(?:[^\s'"@/\\]{1,200}(?=@)|(?=[^\s'"@/.\\]{0,100}[0-9])[^\s'"@/.\\]{1,200}+(?=[\s'"\\]|\Z))""",
            re.IGNORECASE,
        ),
    ),
    # userid=user/abc@orcl
    (("userid=",), LazyPattern(r"""(\buserid=[^\s/'"@]{1,100}/)[^\s'"@\\]+""", re.IGNORECASE)),
    # aws configure set aws_secret_access_key abc
    (("configure",), LazyPattern(rf"""(\bconfigure{_GAP}set{_GAP}{TELLING}{_GAP})[^\s'"\\]+""", re.IGNORECASE)),
)


def mask_commands(text: str) -> str:
    """Return the text without the passwords of command lines."""
    lowered = text.lower()
    for programs, words in _WORDS:
        if any(program in lowered for program in programs):
            text = words.sub(rf"\1{MASK}", text)
    if not any(option in lowered for option in _OPTIONS) or not any(name in lowered for name in _NAMES):
        return text
    return _SHELL.sub(_mask_shell, _LIST.sub(_mask_list, text))


_COMMAND = re.compile(
    r"(?:.{0,500}[/\\])?(?:lftp|sqlplus|sqlldr|impdp|expdp|rman|aws|mysql\w*|mariadb(?:-\w+)*|mongo\w*|sshpass|cqlsh"
    r"|7za?|sqlcmd|bcp|osql|tsql|zip|unzip|mosquitto_(?:pub|sub)|(?:redis|valkey|keydb)-cli|ldap\w{3,10})(?:\.exe)?",
    re.IGNORECASE,
)
_BETWEEN_ITEMS = "', '"


def is_command(items: Sequence[object]) -> bool:
    """Return whether a list is the command of a program that takes its password in a way of its own."""
    return bool(items) and isinstance(items[0], str) and _COMMAND.fullmatch(items[0]) is not None


def mask_item(items: Sequence[object], at: int) -> str:
    """Return what may be shown of an item of such a command, by the program and the items before it."""
    before = [item for item in (items[0], *items[max(1, at - 3) : at]) if isinstance(item, str)]
    word = str(items[at])
    text = f"'{_BETWEEN_ITEMS.join([*before, word])}'"
    masked = mask_commands(text)
    if masked == text or not at:
        return word
    return MASK if _BETWEEN_ITEMS in word else masked.rpartition(_BETWEEN_ITEMS)[2][:-1]


def _mask_list(command: re.Match[str]) -> str:
    def masked(word: re.Match[str]) -> str:
        return word["before"] + MASK if word["option"] == command.lastgroup else word[0]

    return _LIST_OPTION.sub(masked, command[0])


def _mask_shell(line: re.Match[str]) -> str:
    awaited: str | None = None  # the option of the program whose words these are

    def masked(word: re.Match[str]) -> str:
        nonlocal awaited
        if word["quoted"]:  # a shell may be given another command line in quotes
            return word[0][0] + mask_commands(word[0][1:-1]) + word[0][-1]
        if word["before"]:
            if word["option"] != awaited:
                return word[0]
            awaited = None  # a second one, as in `sshpass -p x ssh -p 22`, is another program's
            return word["before"] + MASK
        awaited = None if word["stop"] else word.lastgroup
        return word[0]

    return _SHELL_WORD.sub(masked, line[0])
