"""Passwords in command lines, such as `mysql -phunter2`, which a failed subprocess repeats in its error.

`-p` alone says nothing: it is a port for psql and "with parents" for mkdir. So the program's name decides.
"""

from __future__ import annotations

import re

from redrive._internal.masking.lazy_pattern import MASK, LazyPattern

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


def mask_commands(text: str) -> str:
    """Return the text without the passwords of command lines."""
    lowered = text.lower()
    if not any(option in lowered for option in _OPTIONS) or not any(name in lowered for name in _NAMES):
        return text
    return _SHELL.sub(_mask_shell, _LIST.sub(_mask_list, text))


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
