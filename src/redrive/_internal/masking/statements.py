"""Values in SQL whose column is named like a secret: the parameters that SQLAlchemy shows, literals of an insert."""

from __future__ import annotations

import re

from redrive._internal.masking.lazy_pattern import MASK, LazyPattern
from redrive._internal.masking.names import TELLING, may_name_a_secret

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
_VALUE = LazyPattern(rf"{_LITERAL}|(?<![\w$:@%.-])[0-9][\w.]*+", re.DOTALL)


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
    return found[1] + _VALUE.sub(lambda value: f"'{MASK}'" if value[0].startswith("'") else MASK, found[3])
