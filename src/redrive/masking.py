"""Keeps secrets out of everything a person or a log can see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

MASK = "***"

_TELLING = (
    r"(?:(?:[\w-]{1,40}[-_])?(?:"
    r"(?:api|access|account|auth|client|encryption|private|secret|shared[-_]access|storage|subscription)[-_]?key|"
    r"token|secret|passwd|password|passphrase|pwd|credentials?|signature)|"
    r"\w{0,20}(?:apikey|token|secret|password|signature)|"
    r"(?:admin|db|database|ftp|mail|pg|root|smtp|ssh|user)[-_]?pass|"
    r"(?:proxy-)?authorization|cookie|set-cookie|x-amz-[a-z-]+)"
)
# `key` alone is Google's query parameter; a `sort_key` or `source_key` is no secret.
_NAMES = rf"(?:key|sig|auth|{_TELLING})"
_SECRET_FIELD = re.compile(rf"sig|auth|{_TELLING}", re.IGNORECASE)

# What follows is not itself a name whose secret is still to come, as in "bearer\nX-Api-Key: abc": to take the name for
# the secret would leave the secret standing.
_NO_NAME = r"""(?![\w-]+(?:\s?:\s|\s?=\s?['"(]))"""

# What must be in a text, in lower case, for a pattern to have a chance. Most messages have none of it, and looking for
# a word is a hundred times as fast as a pattern.
_SECRET_WORDS = ("key", "token", "secret", "pass", "pwd", "cred", "sig", "auth", "cookie", "x-amz")
# Every name that _NAMES takes ends so, but Amazon's.
_NAME_ENDS = (
    *("key", "token", "secret", "passwd", "password", "passphrase", "pwd", "credential", "credentials"),
    *("signature", "sig", "auth", "authorization", "cookie", "pass"),
)
_BEHIND_A_NAME = frozenset({"=", ": "})
_SHAPES = ("eyj", "akia", "asia", "aiza", "gh", "github_pat", "glpat", "sk", "rk", "pk", "xox")

_PATTERNS: tuple[tuple[tuple[tuple[str, ...], ...], re.Pattern[str], str], ...] = (
    # -----BEGIN PRIVATE KEY----- …
    (
        (("private key",),),
        re.compile(
            r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?! \*\*\*)"  # nothing is left of one that was masked before
            r".*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        rf"\1 {MASK}",
    ),
    # Addresses that are secrets themselves: of Slack, Discord and Teams
    (
        (("/services/t", "webhook"),),
        re.compile(
            r"(/services/(?=T\w+/B\w+/)|/api/webhooks/(?=\d+/)|/webhookb2/|office\.com/webhook/)[\w./@-]{8,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
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
    (
        (("://",), ("@",)),
        re.compile(r"\b([a-z][a-z0-9+.-]{0,30}://)[^\s/:@'\"]{16,500}@", re.IGNORECASE),
        rf"\1{MASK}@",
    ),
    # auth=("etl", "abc")
    ((("auth",), ("=",), ("(",)), re.compile(r"(?<![\w-])(auth\s?=\s?)\([^()]*\)", re.IGNORECASE), rf"\1{MASK}"),
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
    # (b"X-Api-Key", b"abc"), as headers are kept
    (
        (("(",), ("'", '"'), _SECRET_WORDS),
        re.compile(rf"""(\(b?(['"]){_NAMES}\2,\s?b?)(['"])(?:\\.|(?!\3).)*\3(?=\))""", re.IGNORECASE),
        rf"\1\3{MASK}\3",
    ),
    # Cookie: theme=dark; session=abc
    (
        ((":",), ("cookie",)),
        re.compile(r"(?<![\w-])((?:set-)?cookie\s*:[ \t]*)(?=[^\r\n'\"]*=)[^\r\n'\"]+", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # Authorization: Token abc
    (
        ((":",), ("authorization",)),
        re.compile(
            r"(?<!\w)(authorization\s*:[ \t]*)(?:[a-z][\w-]{0,20}[ \t]+)?"
            rf"{_NO_NAME}(?=[^\s'\"]{{16}}|[^\s'\"]*[0-9])[^\s'\"{{\[,;]{{8,}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # X-Api-Key: abc, as a line of headers
    (
        ((":",), ("key", "token")),
        re.compile(
            rf"(?<![\w-])((?:x-)?api-?key|x-[a-z-]{{0,30}}token)(\s*:[ \t]*){_NO_NAME}[^\s'\"{{\[]{{8,}}", re.IGNORECASE
        ),
        rf"\1\2{MASK}",
    ),
    # password: abc123, also a header of any other name; "password: field required" is none
    (
        ((": ",), _SECRET_WORDS),
        re.compile(
            rf"(?<![\w-])({_TELLING}\s?: +){_NO_NAME}(?=[^\s'\",;]*[0-9])[^\s'\",;(){{}}\[\]<>]{{8,}}", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
    # --password abc
    (
        (("--",), _SECRET_WORDS),
        re.compile(rf"""(?<![\w-])(--{_TELLING}\s+)(?:'[^']*'|"[^"]*"|[^\s'"]+)""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # PagerDuty's routing key; RabbitMQ has one, too, which is no secret and looks different
    (
        (("key",), ("routing", "integration")),
        re.compile(
            r"""\b((?:routing|integration)[-_ ]?key(?:\\?["'])?\s?[:=]\s?(?:\\?["'])?)[0-9a-z]{32}\b""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
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
_ANY = (*_SECRET_WORDS, "bearer", "basic", "digest", "://", "/services/t", "webhook", *_SHAPES)

# How the numbers of payment cards begin and how long they are, by issuer. None begins with 1 or 20, as times do.
_ISSUERS: tuple[tuple[str, Iterable[int]], ...] = (
    ("4", (13, 16, 19)),  # Visa
    ("5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720", (16,)),  # Mastercard
    ("3[47]", (15,)),  # American Express
    ("30[0-5]|3095|3[689]", range(14, 20)),  # Diners Club
    ("35(?:2[89]|[3-8])", range(16, 20)),  # JCB
    ("6011|64[4-9]|65", range(16, 20)),  # Discover
    ("62", range(16, 20)),  # UnionPay
    ("5018|5020|5038|5893|6304|6759|676[1-3]", range(13, 20)),  # Maestro
    ("508|60|81|82", (16,)),  # RuPay
    ("220[0-4]", range(16, 20)),  # Mir
    ("9792", (16,)),  # Troy
)
_ISSUED = re.compile(
    "|".join(
        rf"(?=(?:{'|'.join(f'.{{{length}}}' for length in lengths)})\Z)(?:{begins})" for begins, lengths in _ISSUERS
    )
)
_DOUBLED = str.maketrans("0123456789", "0246813579")

# The groups that cards are written in. Between them stands a blank, also as URLs have it, or a dash.
_GROUPINGS = frozenset(
    [
        *((size,) for size in range(13, 20)),
        *((4, 4, 4, size) for size in range(1, 5)),
        *((4, 4, 4, 4, size) for size in range(1, 4)),
        *((4, 6, 5), (4, 6, 4), (4, 3, 3, 3), (4, 4, 5), (4, 5, 6), (6, 10), (6, 13), (8, 8)),
    ]
)
_SHORTEST = 13
_MOST_GROUPS = max(map(len, _GROUPINGS))
_GAP = "(?:[ +\u00a0-]|%20)"
_GROUP = re.compile(rf"(?P<gap>{_GAP})?(?P<digits>[0-9]++)")
_GROUPS = re.compile(rf"[0-9]++(?:{_GAP}[0-9]++)*+")

# Whether a text may hold a card shows once its digits are all alike, and so are the gaps: no pattern is needed for it.
_ALL_ALIKE = bytes.maketrans(b"123456789 +%\xa0", b"000000000----")
_HALF_A_BLANK = b"\xc2"

# Digits that are part of something else: of an id, a hash, a fraction.
_NO_CARD = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])"
    r"|0[xX][0-9a-fA-F]++"
    r"|(?=[0-9]*+[a-fA-F])[0-9a-fA-F]{8,}+(?![0-9A-Za-z])"
    r"|[0-9]++\.0*+[1-9][0-9]*+)"
)
# A character as literals and URLs write it: its digits do not belong to those that follow.
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[a-z])|(?!(?<=[0-9])%20[0-9])%[0-9a-fA-F]{2}"
)

# Keys and tokens in use, which may look like anything, in the forms in which a text may have them; the longest first.
_known: dict[str, None] = {}
_known_forms: tuple[tuple[str, str], ...] = ()
_MOST_KNOWN = 64  # each is looked for in every text


def remember(secret: str) -> None:
    """From here on, mask this very text wherever it is seen: a server may repeat the key that it refuses.

    One that could be a common word is not remembered, and of very many only the latest are.
    """
    global _known_forms  # noqa: PLW0603 - what is secret is secret for the whole process
    if len(secret) < 8 or (len(secret) < 16 and secret.isalpha()):
        return
    _known.pop(secret, None)
    _known[secret] = None
    for oldest in list(_known)[:-_MOST_KNOWN]:
        _known.pop(oldest, None)
    forms = {form: MASK + last_four(known) for known in list(_known) for form in _forms(known)}
    _known_forms = tuple(sorted(forms.items(), key=lambda form: -len(form[0])))


def _forms(secret: str) -> Iterator[str]:
    """A text as it is, as it stands in a URL, and as Python shows it."""
    yield secret
    for quoted in (quote, partial(quote, safe=""), quote_plus):
        yield quoted(secret, errors="replace")
    yield repr(secret)[1:-1]


def mask(text: str) -> str:
    """The text without what looks like a credential, without known ones, and of payment cards only their last four."""
    for form, shown in _known_forms:
        if form in text:
            text = text.replace(form, shown)
    alike = text.encode("utf-8", "surrogatepass").translate(_ALL_ALIKE, _HALF_A_BLANK).decode("latin-1")
    if "0000-000" in alike or "0000000000000" in alike:
        return _without_cards(text)
    return _without_credentials(text)


def _without_credentials(text: str) -> str:
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
            mark = needs[0][0]
            if mark not in _BEHIND_A_NAME or _names_a_secret(lowered, mark):
                text = pattern.sub(replacement, text)
    return text


def _names_a_secret(lowered: str, mark: str) -> bool:
    """Whether this mark stands somewhere behind what may be a secret's name."""
    before = lowered.split(mark)[:-1]
    return any(part.rstrip().endswith(_NAME_ENDS) or "x-amz-" in part for part in before)


def _without_cards(text: str) -> str:
    """Without credentials and cards; a card that is used as a credential is hidden as one, in all its groups."""
    while cards := _cards_in(text):  # once more, since the last four of one may begin another
        text = _without_credentials(_with_cards(text, cards, str))
        text = _with_cards(text, _cards_in(text), lambda digits: MASK + last_four(digits))
    return _without_credentials(text)


def _with_cards(text: str, cards: list[_Card], shown: Callable[[str], str]) -> str:
    """The text with its cards as they are to be shown."""
    pieces, done = [], 0
    for card in cards:
        pieces += [text[done : card.start], shown(card.digits)]
        done = card.end
    return "".join(pieces) + text[done:]


class _Card(NamedTuple):
    start: int
    end: int
    digits: str


def _cards_in(text: str) -> list[_Card]:
    if "\\" in text or "%" in text:
        text = _ESCAPE.sub(lambda escape: "." * len(escape[0]), text)
    cards = [card for groups in _GROUPS.finditer(text) for card in _cards_of(groups)]
    others = [other.span() for other in _NO_CARD.finditer(text)] if cards else ()
    return [card for card in cards if not any(start < card.end and card.start < end for start, end in others)]


def _cards_of(run: re.Match[str]) -> Iterator[_Card]:
    """The cards among groups of digits, which may have other numbers beside them."""
    if run.end() - run.start() < _SHORTEST:
        return
    groups, at = list(_GROUP.finditer(run.string, *run.span())), 0
    while at < len(groups):
        for count in range(min(_MOST_GROUPS, len(groups) - at), 0, -1):
            found = groups[at : at + count]
            digits = "".join(group["digits"] for group in found)
            if _is_card(found, digits):
                yield _Card(found[0].start("digits"), found[-1].end(), digits)
                at += len(found)
                break
        else:
            at += 1


def _is_card(groups: list[re.Match[str]], digits: str) -> bool:
    return (
        _ISSUED.match(digits) is not None
        and tuple(len(group["digits"]) for group in groups) in _GROUPINGS
        and len({group["gap"] for group in groups[1:]}) <= 1
        and _has_check_digit(digits)
    )


def _has_check_digit(digits: str) -> bool:
    """By the formula of Luhn."""
    backwards = digits[::-1]
    return (sum(map(int, backwards[::2])) + sum(map(int, backwards[1::2].translate(_DOUBLED)))) % 10 == 0


def mask_all(value: Any) -> Any:
    """A document without secrets: its texts and numbers masked, and whatever stands under the name of a secret."""
    if isinstance(value, Mapping):
        return {name: _under(name, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_all(inner) for inner in value]
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and (shown := mask(str(value))) != str(value):
        return shown  # a card that was read as a number
    return value


def _under(name: object, value: Any) -> Any:
    named = isinstance(name, str) and _SECRET_FIELD.fullmatch(name)
    return MASK if named and isinstance(value, str) and value else mask_all(value)


def last_four(secret: str) -> str:
    """What may be shown of a key."""
    return secret[-4:]
