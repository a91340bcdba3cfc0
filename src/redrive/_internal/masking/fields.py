"""Secrets that stand apart from the name of their field: in errors of pydantic, in SQL, in lists and headers."""

from __future__ import annotations

import re
from typing import Final

from redrive._internal.masking.patterns import MASK, NAMES, SECRET_FIELD, TELLING, LazyPattern, may_name_a_secret
from redrive._internal.masking.structures import mask_structures

_NEWLINE: Final = r"(?:\n|\\n)"

# password
#   Input should be a valid integer [type=int_type, input_value='abc', input_type=str]
_INPUT = LazyPattern(
    rf"((?:^|\\n)(?P<location>(?:(?!\\n)[^\n]){{1,300}}+){_NEWLINE}[ \t]{{1,8}})"
    r"((?:(?!input_value=|(?<!\\)\\n)[^\n])*+)(input_value=)((?:(?!, input_type=)[^\n])*+)",
    re.MULTILINE,
)
# A step of the location, which continues after the name: `password.int`, `api_keys.prod`, `password.function-after[…]`
_STEP: Final = re.compile(rf"{NAMES}|{TELLING}s", re.IGNORECASE)
# input_value={'host': 'db.exam...word': 'abc', 'port': 1}: what follows the dots may be a value whose name is truncated
_CUT = LazyPattern(
    r"(input_value=[\w.]{0,80}[{(\[](?:(?!, input_type=|\.\.\.)[^\n]){0,100}\.\.\.)"
    r"(?:(?!, input_type=|, ['\"]|, \w{1,60}=)[^\n])++"
)
# DETAIL:  Key (tenant, password)=(7, abc) already exists.
_KEY = LazyPattern(r"(\(([\w\", ]{1,200})\)=\()([^\n]*+)")
# redirect=https%3A%2F%2Fhost%2F%3Ftoken%3Dabc%26page%3D1
_ENCODED = LazyPattern(
    rf"((?:%(?:25)?(?:3f|26|23)|(?<![\w-])){NAMES}%(?:25)?3D)(?:(?!%(?:25)?26)[^\s&'\",;])++", re.IGNORECASE
)
# proxy=http%3A%2F%2Fuser%3Aabc%40host
_ENCODED_USER = LazyPattern(
    r"(%(?:25)?3A%(?:25)?2F%(?:25)?2F[^\s&'\"%]{0,100}%(?:25)?3A)(?:(?!%(?:25)?40)[^\s&'\"]){1,300}+(?=%(?:25)?40)",
    re.IGNORECASE,
)
# password is abc12345; machine host login user password abc12345, as .netrc has it
_STATED = LazyPattern(
    r"(?<![\w-])((?:password|passwd|passphrase|passcode|pwd)\s{1,5}(?:is|was)\s{1,5}"
    r"|(?:api[ _-]?key|token|secret)\s{1,5}provided(?::\s{0,5}|\s{1,5})"
    r"|\blogin[ \t]{1,5}\S{1,100}[ \t]{1,5}password[ \t]{1,5})(?=[^\s'\"]{0,100}[0-9])[^\s'\",;<>]{6,}+",
    re.IGNORECASE,
)


# A line of YAML with its value on the next one: `password: |`
_NEXT_LINE = LazyPattern(
    rf"(?<![\w-])({TELLING}:[ \t]{{0,5}}(?:[|>][+-]?[ \t]{{0,5}})?\n[ \t]{{1,20}})(?=[^\s'\"]{{0,100}}[0-9])"
    r"[^\s:'\",;(){}\[\]<>=]{8,}+(?![:=(\[])",
    re.IGNORECASE,
)

_ENCODED_MARKS = ("%3d", "%253d", "%40", "%2540")


def mask_fields(text: str) -> str:
    """Return the text without values of fields that are named like secrets."""
    lowered = text.lower()
    for word in _ENCODED_MARKS:
        if word in lowered:
            text = _ENCODED_USER.sub(rf"\1{MASK}", _ENCODED.sub(rf"\1{MASK}", text))
            break
    if "input_value=" in lowered:
        text = _CUT.sub(rf"\1{MASK}", _INPUT.sub(_masked_input, text))
    if not may_name_a_secret(lowered):
        return text
    if ")=(" in lowered:
        text = _KEY.sub(_masked_key, text)
    text = mask_structures(text, lowered)
    if ":\n" in lowered or ": |" in lowered or ": >" in lowered:
        text = _NEXT_LINE.sub(rf"\1{MASK}", text)
    if "pass" in lowered or "pwd" in lowered or "provided" in lowered:
        text = _STATED.sub(rf"\1{MASK}", text)
    return text


def _masked_input(found: re.Match[str]) -> str:
    """Mask the error of a field, whose message may contain the value."""
    if not any(map(_STEP.fullmatch, re.split(r"\.|: ", found["location"]))):
        return found[0]
    value = found[5].strip("'\"")
    message = found[3].replace(value, MASK) if len(value) >= _SHORTEST else found[3]
    place = found[1].replace(value, MASK) if value and "[key]" in found["location"] else found[1]
    return f"{place}{message}{found[4]}{MASK}"


_SHORTEST = 4  # characters of a value; a shorter one is found in every message


def _masked_key(found: re.Match[str]) -> str:
    if not any(SECRET_FIELD.fullmatch(name.strip(' "')) for name in found[2].split(",")):
        return found[0]
    _, closed, after = found[3].rpartition(")")
    return f"{found[1]}{MASK}{closed}{after}"


_STATEMENT = "[SQL: "
_PARAMETERS = "[parameters: "
# Within the parameters a line break is shown as an escape. In a text that is itself shown so, the whole rest is theirs.
_END = LazyPattern(r"\](?=\n|\\n\(Background on this error|\\*['\"]?\Z)")

_COLUMN = LazyPattern(rf"(?<![\w-])(?:\w{{1,60}}\.)?{TELLING}(?![\w-])", re.IGNORECASE)
# A quote doubled or behind a backslash does not end a literal.
_LITERAL = r"'(?:[^'\\]|''|\\.)*+(?:'|\\?\Z)"
_GROUP = rf"\((?:{_LITERAL}|[^'()]|\((?:{_LITERAL}|[^'()])*+\))*+(?:\)|\Z)"
# insert into users(id, password) values(1, 'abc'), (2, 'def')
_INSERT = LazyPattern(
    r"(\binto\s{1,20}[\w.\"`\[\]\\]{1,200}\s{0,20}\(([^()]{1,4000})\)\s{0,20}values\s{0,20})"
    rf"({_GROUP}(?:\s{{0,20}},\s{{0,20}}{_GROUP})*+)",
    re.IGNORECASE | re.DOTALL,
)
_LITERAL_OR_NUMBER = LazyPattern(rf"{_LITERAL}|(?<![\w$:@%.-])[0-9][\w.]*+", re.DOTALL)


def mask_statements(text: str) -> str:
    """Return the text without the values of SQL statements that name a secret column."""
    lowered = text.lower()
    if not may_name_a_secret(lowered):
        return text
    if _PARAMETERS in text:
        text = _without_parameters(text)
    if "values" in lowered:
        text = _INSERT.sub(_masked_insert, text)
    return text


def _without_parameters(text: str) -> str:
    statement, *rests = text.split(_PARAMETERS)
    parts = [statement]
    for rest in rests:
        _, shown, sql = statement.rpartition(_STATEMENT)
        end = _END.compiled.search(rest)
        after = rest[end.start() :] if end else ""
        parts.append(MASK + after if _COLUMN.compiled.search(sql if shown else statement) else rest)
        statement = rest
    return _PARAMETERS.join(parts)


def _masked_insert(found: re.Match[str]) -> str:
    if not _COLUMN.compiled.search(found[2]):
        return found[0]
    return found[1] + _LITERAL_OR_NUMBER.sub(lambda value: f"'{MASK}'" if value[0].startswith("'") else MASK, found[3])
