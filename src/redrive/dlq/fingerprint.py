r"""Which letters have the same cause: their message without what differs from record to record.

`could not convert string to float: 'N/A'` is one cause, whatever the value, and the template shows why:
`could not convert string to float: <value>`. What names the kind of error is kept: words, columns and missing keys,
HTTP statuses, SQLSTATEs, types, encodings. Only the first 2,000 characters count.

| placeholder                | stands for                                                                   |
|----------------------------|------------------------------------------------------------------------------|
| `<n>`                      | a number, also within a name, a path or a URL: `/data/part-<n>.csv`          |
| `<value>`                  | a quoted text, the values of a row or a key, SQL parameters, a query string  |
| `<id>`                     | a UUID, a hash, a token                                                      |
| `<hex>`                    | 0xff, the address of an object                                               |
| `<date>`, `<time>`         | a date, with or without its time; a time alone                               |
| `<email>`, `<ip>`, `<url>` | an address; `<url>` only for a page of documentation                         |

Several of one kind in a row, `<n>, <n>, <n>`, are written once.

To strip differently is to regroup the letters of the past: it takes a new VERSION.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

VERSION = 1

_LONGEST = 2_000
_LONGEST_NAME = 64
_MARKS = ("'", '"', "`")

_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_ZONE = r"(?:[ ]?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
# A quote within a word is an apostrophe: 'O'Brien' is one text.
_QUOTED = "|".join(rf"{mark}(?:[^{mark}\\]++|\\.|{mark}(?=[\w<]))*+{mark}" for mark in _MARKS)

# One pass: each match is a stretch of plain words, skipped, and then one token. A token begins where a word begins and
# takes all of it, and to what stands beside it a placeholder looks like a word: so a template is its own template.
# The first alternatives are the frequent ones, for speed; the others go from special to general.
_TOKEN = re.compile(
    rf"""
    ([ ,;]*+ (?:([A-Za-z_]++)(?::?+[ ,;]++|\Z))*+)
    (?: \Z
    | (?P<count> \d++ (?=\]|[).,;]?+(?:\Z|[ ](?![A-Z]))) )
    | (?P<quoted> (?<![\w>]) (?:{_QUOTED}) )
    | (?P<word> (?!input_value=) [A-Za-z_]++ (?=[ ()\]}}>='] | \Z) )
    | (?P<row> (?<=row[ ]contains[ ])\(.*\) )
    | (?P<key> =\([^)]*+\) )
    | (?P<statement> \[(?:SQL|parameters):[ ](?:(?!\][ ]?(?:\[parameters:|\(Background)).)*+ )
    | (?P<query> \?[\w.%-]++=[^\s()\[\]]*+ )
    | (?P<mark> [^\w\s'"`<:+-] )
    | (?P<kept> <(?:n|value|id|hex|date|time|email|ip|url)>
      | (?i: HTTP/\d(?:\.\d)?(?:[ ]\d{{3}})? | ORA-\d+ | utf[-_]?\d{{1,2}} | iso[-_]?8859[-_]\d{{1,2}} | latin[-_]?\d
        | (?:windows|cp)[-_]?\d{{3,4}} | x86_64 | (?:u?int|float|complex|decimal|sha-?|base|md)\d{{1,3}} ) (?!\w) )
    | (?<![\w>]) (?:
        (?P<email> \w[\w.+-]*+ @ [\w-]++ (?:\.[\w-]++)++ )
      | (?P<input> input_value= (?:(?!,[ ]input_type=).)*+ )
      | (?P<url> https://(?:errors\.pydantic\.dev|developer\.mozilla\.org|sqlalche\.me)[\w./-]*+ )
      | (?P<ip> \d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w.])
        | (?=[a-fA-F:]*\d) (?:[0-9a-fA-F]{{0,4}}:){{2,7}}[0-9a-fA-F]{{1,4}}(?!\w) )
      | (?P<date> (?: \d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}T{_CLOCK}{_ZONE}
          | (?: \d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}} | \d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}
            | \d{{1,2}}[ ]{_MONTH}[a-z]*[ ]\d{{4}} )
            (?:[ ]{_CLOCK}{_ZONE})? ) (?!\w) )
      | (?P<time> {_CLOCK}(?!\w) )
      | (?P<id> [0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}(?!\w) )
      )
    | (?P<words> [^\W\d]++(?!\w) )
    | (?P<hex> 0[xX][0-9a-fA-F]++(?!\w) )
    | (?P<line> (?<=LINE[ ])\d++:[ ] (?:(?![ ](?:DETAIL|HINT|CONTEXT|QUERY):).)*+ )
    | (?P<number> (?:(?<![\w>'"`)\]])[+-])? \d++(?:[.,_]\d++)*+ (?:[eE][+-]?\d++)? (?!\w) )
    | (?P<atom> \w++ )
    | (?P<rest> . )
    )
    """,
    re.VERBOSE,
)

_REPLACED = {
    "email": "<email>",
    "url": "<url>",
    "ip": "<ip>",
    "date": "<date>",
    "time": "<time>",
    "id": "<id>",
    "hex": "<hex>",
    "line": "<n>",
    "input": "input_value=<value>",
    "row": "(<value>)",
    "key": "=(<value>)",
    "query": "?<value>",
}


def _words(listed: str) -> frozenset[str]:
    words = listed.split()
    return frozenset([*words, *map(str.capitalize, words), *map(str.upper, words)])


# A quoted text after one of these words is no value but the cause itself,
_NAMING = _words(
    """argument attribute class codec col column columns constraint database dtype encoding enum extension field fields
    format function header index key keys KeyError label locale missing module name named option parameter property
    relation role schema sequence sheet table tag type variable view"""
)
# and so it is before one of these.
_NAMED = (" object ", " codec ", " field ", " is a required property", " was unexpected", " not in index")
_TYPES = _words(
    """bool boolean bytes complex date datetime decimal dict f32 f64 float function i8 i16 i32 i64 int integer list
    NoneType null number object set str string timedelta tuple u8 u16 u32 u64"""
)
# A number after one of these words names the kind of error, as a status does before its reason.
_CODED = _words("base errno error error_code exit_code http sqlstate status status_code winerror")
_CODE = ("error code ", "exit code ", "response code ", "return code ", "status code ")
_MAY_BE_CODED = _CODED | {"code", None}
_REASONS = tuple(
    f" {phrase}"
    for phrase in (
        *("Bad Gateway", "Bad Request", "Conflict", "Forbidden", "Gateway Time", "Internal Server", "Not Found"),
        *("Payment Req", "Service Unavail", "Too Many Req", "Unauthorized", "Unprocessable"),
    )
)

_ENDS = re.compile(r"[.:](?: |\Z)")
_STATUS = re.compile(r"[1-5]\d\d(?: [A-Z][A-Za-z-]*)+")
_ADDRESS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:/|/[^\s/]+)/\S*")
_DIGITS = re.compile(r"^\d+|\d{3,}")
_HEX_RUN = re.compile(r"[0-9a-fA-F]{8,}")
_TANGLED = re.compile(r"\d*(?:\D+\d+){3}")
_LIST = re.compile(r"(<[a-z]+>)(?:, \1)+")
_CODE_AND_TEXT = re.compile(r"""\((\d{4}), (["'])(.*)\2\)\Z""")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The cause of a letter."""

    value: str
    template: str
    version: int


def fingerprint(error_type: str, message: str) -> Fingerprint:
    """The cause that an error of this type and message has."""
    return _fingerprint(error_type, template(message))


@lru_cache(maxsize=4_096)
def _fingerprint(error_type: str, shape: str) -> Fingerprint:
    parts = f"{VERSION}\0{error_type}\0{shape}".encode(errors="backslashreplace")
    return Fingerprint(blake2b(parts, digest_size=6).hexdigest(), shape, VERSION)


def template(message: str) -> str:
    """The message without what differs from record to record."""
    return _template(message[:_LONGEST])


@lru_cache(maxsize=1_024)
def _template(message: str) -> str:
    text = message.strip()
    if not text.isprintable() or "  " in text:  # the only printable white space is a blank
        text = " ".join(text.split())
    if text[:1] == "(":
        # Drivers of MySQL show an error as the pair of its code and its message.
        pair = _CODE_AND_TEXT.match(text)
        text = f"({pair[1]}) {pair[3]}" if pair else text
    text = _strip(text)
    while len(text) > _LONGEST:
        # Placeholders may be longer than what they stand for, and a cut leaves quotes open.
        start = text[:_LONGEST]
        text = _strip(start.rpartition(" ")[0] or start)
    return text


def _strip(text: str) -> str:
    text = _TOKEN.sub(_replace, text)
    return _LIST.sub(r"\1", text) if ">, <" in text else text


def _replace(match: re.Match[str]) -> str:
    kind = match.lastgroup
    if kind == "count" and match[2] not in _MAY_BE_CODED:
        return match[1] + "<n>"
    judge = _JUDGED.get(kind)
    if judge:
        return match[1] + judge(match)
    if kind in _REPLACED:
        return match[1] + _REPLACED[kind]
    return match[0]


def _quoted(match: re.Match[str]) -> str:
    token, text, end = match["quoted"], match.string, match.end()
    start = end - len(token)
    # Kept only where it stands free: beside a placeholder it would no longer be seen as quoted.
    if text[start - 1 : start] not in " ([{<=:," or (
        text[end : end + 1] not in " ,;)]}>" and not _ENDS.match(text, end)
    ):
        return "<value>"
    content = token[1:-1]
    if (match[2] or _word_before(match, token)) in _NAMING or text.startswith(_NAMED, end) or len(token) == len(text):
        name = _TOKEN.sub(_replace, content)
        return token[0] + name + token[0] if len(name) <= _LONGEST_NAME else "<value>"
    if "/" in content and _ADDRESS.fullmatch(content):
        address = _TOKEN.sub(_replace, content)
        return token[0] + address + token[0] if _ADDRESS.fullmatch(address) else "<value>"
    return token if content in _TYPES or _STATUS.fullmatch(content) else "<value>"


def _number(match: re.Match[str]) -> str:
    token, text, end = match[match.lastgroup or 0], match.string, match.end()
    word = match[2] or _word_before(match, token)
    if (
        word in _CODED
        or (word == "code" and match[1].replace(":", "").lower().endswith(_CODE))
        or (len(token) == 3 and text.startswith(_REASONS, end))
        or (len(token) == 4 and end == 5 and text[0] == "(" and text.startswith(") ", end))
    ):
        return token
    return "<n>"


def _word_before(match: re.Match[str], token: str) -> str:
    """The word that a token hangs on where there is no blank between them: `status` in "status=404"."""
    text, start = match.string, match.end() - len(token)
    return text[text.rfind(" ", 0, start) + 1 : start].strip(":(=[<")


def _atom(match: re.Match[str]) -> str:
    """A word with digits in it."""
    token = match["atom"]
    if len(token) >= 8 and (
        _TANGLED.match(token) or any(not run.isdigit() and not run.isalpha() for run in _HEX_RUN.findall(token))
    ):
        return "<id>"
    return _DIGITS.sub("<n>", token)


def _statement(match: re.Match[str]) -> str:
    return match["statement"].partition(":")[0] + ": <value>"


_JUDGED: dict[str | None, Callable[[re.Match[str]], str]] = {
    "count": _number,
    "number": _number,
    "quoted": _quoted,
    "atom": _atom,
    "statement": _statement,
}
