"""Values that this process knows to be secret, found in a text in whatever form it has them.

They come from the environment, from settings and URLs, from keys and tokens in use, and from `mask_value`. No pattern
has to recognise what stands around them.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import cached_property
from urllib.parse import unquote

from redrive._internal.masking.patterns import MASK, SECRET_FIELD, without_controls

__all__ = ["is_distinctive", "last_four", "learn", "learn_address", "learn_url", "mask_known", "mask_value", "remember"]

# Every known value is looked for in every text, so their number is bounded; of more, the latest are masked.
_MOST_KEYS = 64
_MOST_LEARNED = 256
_MOST_REGISTERED = 1_000

_LONGEST = 1_024  # characters of a value that are looked for at once; a longer one is masked in pieces
_MOST_PIECES = 64
_SHORTEST = 8
_SHORTEST_MIXED = 6  # with digits, and with letters of both cases or a symbol
_LONGEST_WORD = 16  # of letters alone
_SHORTEST_KEY = 16

# ── forms ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_NAMED_REFERENCES = {'"': "quot", "&": "amp", "'": "apos", "<": "lt", ">": "gt"}
_LETTER_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\a": "a", "\0": "0"}
_BACKSLASH = r"(?:\\|%(?:25)*+5[cC])"
_OTHER_FORMS = {
    " ": (r"\+", "%(?:25)*+2[bB]"),
    "\n": (r"\r\n", r"r\\++n", "%(?:25)*+0[dD]%(?:25)*+0[aA]"),
}
_PLAIN = re.compile(r"[A-Za-z0-9]+")
_PIECE = re.compile(r"[A-Za-z0-9]+|\\+|'+|.", re.DOTALL)


def _hex(number: int, digits: int) -> str:
    """Return a number in hexadecimal, in either case."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{number:0{digits}x}")


def _piece(piece: str, before: str) -> str:
    """Return a pattern for characters that languages escape, or several backslashes or quotes.

    Args:
        piece: the characters.
        before: what stands before them; nothing at the beginning of a value.
    """
    if piece[0] == "\\":
        # Only where a run begins: to look at each of its ends from each of its characters would take too long.
        return rf"{_BACKSLASH}{{{len(piece)},}}+" if before else rf"(?<!\\)(?<![%5]5[cC]){_BACKSLASH}++"
    if piece[0] == "'":  # SQL doubles each
        most = 2 * len(piece) - 1
        return rf"{_character(piece[0], before)}(?:{_character(piece[0], piece[0])}){{{len(piece) - 1},{most}}}+"
    return _character(piece, before)


def _character(char: str, before: str) -> str:
    r"""Return a pattern for a character: `"` is also `\"`, `\\\"`, `%22`, `%2522`, `&quot;` and `\u0022`."""
    code = ord(char)
    encoded = char.encode("utf-8", "surrogatepass")
    slash = "" if before else _BACKSLASH
    forms = [
        re.escape(char),
        "".join(rf"%(?:25)*+{_hex(byte, 2)}" for byte in encoded) if char != "%" else "%(?:25)*",
        rf"&(?:amp;)*+#(?:0{{0,4}}{code}|[xX]0{{0,4}}{_hex(code, 1)});",
        *_OTHER_FORMS.get(char, ()),
    ]
    if char in _NAMED_REFERENCES:
        forms.append(rf"&(?:amp;)*+{_NAMED_REFERENCES[char]};" if char != "&" else "&(?:amp;)*")
    if code < 0x10000:
        forms.append(rf"{slash}u{_hex(code, 4)}")
    else:
        high, low = divmod(code - 0x10000, 0x400)
        low_half = rf"{_BACKSLASH}++u{_hex(0xDC00 + low, 4)}"
        forms += [rf"{slash}u{_hex(0xD800 + high, 4)}{low_half}", rf"{slash}U{_hex(code, 8)}"]
    if code < 0x100:
        forms.append(rf"{slash}x{_hex(code, 2)}")
    if len(encoded) > 1:
        forms.append(slash + rf"{_BACKSLASH}++".join(f"x{_hex(byte, 2)}" for byte in encoded))
    if char in _LETTER_ESCAPES:
        forms.append(slash + _LETTER_ESCAPES[char])
    # The backslashes before all of these are taken at once, so that none is looked at again.
    return f"{f'{_BACKSLASH}*+' if before else ''}(?:{'|'.join(reversed(forms))})"


class _Form:
    """Finds a text in every way in which it may be escaped."""

    def __init__(self, text: str, char: Callable[[str, str], str] = _piece) -> None:
        self._text = text
        self._char = char
        self._core = max(_PLAIN.findall(text), key=len, default="")
        self._is_plain = self._core == text

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = ""
        for piece in _PIECE.finditer(self._text):
            before = self._text[max(0, piece.start() - 1) : piece.start()]
            pattern += piece[0] if _PLAIN.match(piece[0]) else self._char(piece[0], before)
        return re.compile(pattern)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where a text has it."""
        if self._core not in text:  # letters and digits are never escaped
            return
        at = text.find(self._text)
        while at >= 0:
            end = at + len(self._text)
            yield at, end
            at = text.find(self._text, end)
        if not self._is_plain:
            yield from (found.span() for found in self._pattern.finditer(text))


def _base64_character(char: str, before: str) -> str:
    """Return a pattern for a character of base64, for which URLs have another one."""
    return f"(?:{_character(char, before)}|{'-' if char == '+' else '_'})"


def _base64_cores(value: str) -> Iterator[str]:
    """Yield what is the same whatever stands before and behind a value, by its place among three bytes."""
    data = value.encode("utf-8", "surrogatepass")
    for before in range(3):
        encoded = b64encode(bytes(before) + data).decode()
        begins, ends = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        yield encoded[begins:ends]


def _forms(value: str) -> tuple[_Form, ...]:
    texts = dict.fromkeys([value, without_controls(value)])
    if "'" in value:  # as shells quote it
        texts |= dict.fromkeys(value.replace("'", quote) for quote in ("'\"'\"'", "'\\''"))
    return (
        *(_Form(text) for text in texts if len(text) >= _SHORTEST_MIXED),
        *(_Form(core, _base64_character) for core in _base64_cores(value)),
    )


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_PATH = re.compile(
    r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[\w .@:-]+[/\\])*[\w .@:-]*\.[A-Za-z0-9]{1,10}"
    r"|(?:~|\.{1,2}|[A-Za-z]:)[/\\].*"
    r"|/(?:app|bin|builds?|certs?|data|dev|etc|home|keys?|lib|mnt|opt|private|proc|root|run|s?bin|secrets?|srv|sys|tmp|usr"
    r"|var|vault|Users|Volumes|work|workspaces?)(?:/[^\s]*)?",
    re.DOTALL,
)


def is_distinctive(value: str) -> bool:
    """Return whether a text with this value is rarely something else: it is no word, no path and not short."""
    if len(set(value)) < 4 or len(value) < _SHORTEST_MIXED or _PATH.fullmatch(value):
        return False
    if value.isalpha() and len(value) < _LONGEST_WORD:
        return False
    if len(value) >= _SHORTEST:
        return True
    kinds = (str.islower, str.isupper, str.isdigit, lambda char: not char.isalnum() and char not in "-_.:/ ")
    return any(map(str.isdigit, value)) and sum(any(map(kind, value)) for kind in kinds) >= 3


_Values = dict[str, tuple[_Form, ...]]
# A dictionary each, so that many of one kind do not displace those of another. No lock: each step is one of `dict`, and
# a process that is forked meanwhile would keep a lock for ever.
_keys: _Values = {}
_learned: _Values = {}
_registered: _Values = {}


def _add(values: _Values, value: str, most: int) -> None:
    forms = values.pop(value, None) or _forms(value)
    values[value] = forms
    for oldest in list(values)[:-most]:
        values.pop(oldest, None)


def _add_all(values: _Values, value: str, most: int) -> bool:
    """Add a value with its lines, each of which a log may show alone."""
    pieces = [value[at : at + _LONGEST] for at in range(0, len(value), _LONGEST)][:_MOST_PIECES]
    if len(value) > _LONGEST:
        pieces[-1] = value[-_LONGEST:]
    lines = [line.strip() for line in value.splitlines()][:_MOST_PIECES] if "\n" in value else []
    usable = [piece for piece in pieces if is_distinctive(piece)]
    usable += [line for line in lines if _is_like_a_key(line)]
    for piece in usable:
        _add(values, piece, most)
    return bool(usable)


def _is_like_a_key(value: str) -> bool:
    """Return whether a value cannot be a name: it is long, without blanks, and has letters and digits."""
    return (
        len(value) >= _SHORTEST_KEY
        and not any(map(str.isspace, value))
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and is_distinctive(value)
    )


def remember(secret: str) -> None:
    """Mask a key or token in use, but for its last four characters: the error of a server may contain it.

    One that could be a common word is not remembered, and of very many only the latest are.
    """
    if is_distinctive(secret):
        _add(_keys, secret, _MOST_KEYS)


def mask_value(value: str | bytes) -> bool:
    """Mask a secret from now on in logs, errors, alerts, task output and on the command line, whatever surrounds it.

    It is also found quoted, escaped, percent-encoded and in base64. The values of variables such as `DB_PASSWORD`,
    passwords of URLs in the environment and in `redrive.toml`, and keys of a `KeyPool` are known without this.

    Call it where the secret is read, on the module level of a flow: workers import that module. The latest 1,000 values
    are masked.

    Returns whether it is masked. A value is not if a text may have it by chance: fewer than 8 characters (6 with
    digits, letters of both cases or a symbol), fewer than 16 letters and nothing else, a path.

    value  the secret, such as a password that was read from a vault
    """
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return _add_all(_registered, text, _MOST_REGISTERED)


# ── the environment and settings ──────────────────────────────────────────────────────────────────────────────────────

_VARIABLE = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SECRET|TOKEN|API_?KEY|CREDENTIAL|_(?:PWD|PASS|PW|AUTH)\Z", re.IGNORECASE
)
_KEY_VARIABLE = re.compile(r"(?:.*_)?KEYS?", re.IGNORECASE)
_PASSWORD_VARIABLE = re.compile(r"PASS|PWD|SECRET", re.IGNORECASE)
# What describes a secret is none: `TOKEN_URL`, `SECRET_NAME`, `PASSWORD_FILE`.
_ABOUT = re.compile(
    r".*_(?:URLS?|URI|FILE|PATH|DIR|NAMES?|ARN|TYPE|HOST|PORT|ENDPOINT|ISSUER|AUDIENCE|TTL|EXPIR\w{0,10}|LENGTH|SIZE"
    r"|LIMIT|COUNT|PROVIDER|BACKEND|MODE|HEADER|FIELD|POLICY|ALGORITHM|REGION|USER|USERNAME|VERSION|ENABLED|PARALLELISM"
    r"|SERVER|STORE|ENGINE|MANAGER|SCOPES?|AT|IN|SECONDS|DAYS)",
    re.IGNORECASE,
)
# A reference to a secret that is kept elsewhere.
_REFERENCE = re.compile(
    r"\$\{?\w+\}?|<[^<>]*>|\{\{.*\}\}|(?:arn|vault|ssm|file|env):.*|\w+(?:/[\w.-]+)*#\w+", re.DOTALL
)

# Other variables may hold any text, such as the title of a commit.
_ADDRESS = re.compile(r"(?:jdbc:)?[A-Za-z][\w+.:-]{0,60}://|[A-Za-z][\w ]{0,40}=")
_PAIR = re.compile(r"(?:\A|[?&;,\s])([\w -]{1,60}?)\s?=\s?([^\s&;,'\"]++|'[^']++'|\"[^\"]++\")")
_AUTHORITY = re.compile(r"[^\s/?#'\"]*")
_WORD = re.compile(r"[^\s'\"]*")
_PORT = re.compile(r"[0-9]{1,5}(?:[/?#]|\Z)")


def learn_url(text: str) -> None:
    """Mask from now on the password of a URL, and what a connection string has under the name of a secret."""
    if "://" in text and "@" in text:
        for rest in text.split("://")[1:]:
            for place in (_AUTHORITY, _WORD):  # a slash in a password that is not encoded does not end it
                found = place.match(rest)
                password = found[0].rpartition("@")[0].partition(":")[2] if found else ""
                if password and not _PORT.match(password):
                    learn(password)
    if "=" in text:
        for name, value in _PAIR.findall(text):
            if SECRET_FIELD.fullmatch(name.strip()) or name.lower().strip() == "key":
                learn(value.strip("'\""))


def learn_address(text: str) -> None:
    """Mask from now on an address that is itself a secret, such as a webhook: the parts of it that look like keys."""
    learn_url(text)
    for part in re.split(r"[/?&=:@#,\s]", text):
        if _is_like_a_key(part):
            learn(part)


def learn(value: str) -> None:
    """Mask a value from now on, as it is and decoded."""
    for text in dict.fromkeys([value, unquote(value)]):
        _add_all(_learned, text, _MOST_LEARNED)


def _learn_variable(name: str, value: str) -> None:
    if _ADDRESS.match(value):
        learn_url(value)
    is_key = not _VARIABLE.search(name)
    if (is_key and not _KEY_VARIABLE.fullmatch(name)) or _ABOUT.fullmatch(name) or _REFERENCE.fullmatch(value):
        return
    if value.lstrip()[:1] == "{" and _learn_document(value):
        return
    if "://" in value:
        return  # an address, whose password is known by now
    if not is_key and (not value.isdigit() or _PASSWORD_VARIABLE.search(name)):
        learn(value.strip())
    for part in (value, *re.split(r"[,;\s]", value), value.partition(":")[2]):
        if _is_like_a_key(part) or (part and not is_key and name.upper().endswith("AUTH")):
            learn(part)


def _learn_document(text: str) -> bool:
    """Mask from now on what a key file in JSON has under the names of secrets."""
    import json

    try:
        document = json.loads(text)
    except ValueError:
        return False

    def walk(value: object, *, is_secret: bool) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, is_secret=is_secret or SECRET_FIELD.fullmatch(name) is not None)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, is_secret=is_secret)
        elif isinstance(value, str):
            if is_secret:
                learn(value)
            else:
                learn_url(value)

    try:
        walk(document, is_secret=False)
    except RecursionError:
        return False
    return True


_environment: dict[object, object] = {}


def _learn_environment() -> None:
    """Look at the variables that have been set since the last text. A value that was unset stays a secret."""
    global _environment  # noqa: PLW0603 - one environment, one process
    # To compare what lies below os.environ takes less than a microsecond, which every text can pay.
    current = getattr(os.environ, "_data", None)
    if current is None:
        current = dict(os.environ)
    if current == _environment:
        return
    before, now = _environment, dict(os.environ)
    _environment = dict(current)
    known = set(map(_decoded, before.items()))
    for name, value in now.items():
        if (name, value) not in known:
            _learn_variable(name, value)


def _decoded(item: tuple[object, object]) -> tuple[object, ...]:
    return tuple(os.fsdecode(part) if isinstance(part, bytes) else part for part in item)


# ── masking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def mask_known(text: str) -> str:
    """Return the text without known values; of keys in use, the last four characters stay."""
    _learn_environment()
    if not (_keys or _learned or _registered) or len(text) < _SHORTEST_MIXED:
        return text
    keys = dict(_keys)
    spans = [(*span, last_four(key)) for key, forms in keys.items() for form in forms for span in form.spans(text)]
    for values in (_learned, _registered):
        for value, forms in list(values.items()):
            if value not in keys:
                spans += [(*span, "") for form in forms for span in form.spans(text)]
    return _replaced(text, spans) if spans else text


def _replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    """Replace spans, those that overlap or touch, by one mask."""
    spans.sort()
    pieces, done = [], 0
    start, end, shown = spans[0]
    for begins, ends, as_shown in [*spans[1:], (len(text) + 1, 0, "")]:
        if begins <= end:
            shown = shown if ends <= end and shown == as_shown else ""
            end = max(end, ends)
            continue
        pieces += [text[done:start], MASK, shown]
        done, start, end, shown = end, begins, ends, as_shown
    return "".join(pieces) + text[done:]


def last_four(secret: str) -> str:
    """Return what may be shown of a key: its last four characters, and of a short one at most half."""
    return secret[len(secret) - min(4, len(secret) // 2) :]
