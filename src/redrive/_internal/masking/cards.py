"""Payment cards in a text: by issuer, length, grouping and check digit."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

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


class Card(NamedTuple):
    """The number of a card and where it stands."""

    start: int
    end: int
    digits: str


def may_hold_cards(text: str) -> bool:
    """Return whether the text has enough digits in a row to contain the number of a card."""
    alike = text.encode("utf-8", "surrogatepass").translate(_ALL_ALIKE, _HALF_A_BLANK).decode("latin-1")
    return "0000-000" in alike or "0000000000000" in alike


def cards_in(text: str) -> list[Card]:
    """The cards of a text, in their order."""
    if "\\" in text or "%" in text:
        text = _ESCAPE.sub(lambda escape: "." * len(escape[0]), text)
    cards = [card for groups in _GROUPS.finditer(text) for card in _cards_of(groups)]
    if not cards:
        return cards
    others = [other.span() for other in _NO_CARD.finditer(text)]
    ends = [end for _, end in others]  # in order, since matches do not overlap

    def is_alone(card: Card) -> bool:
        first = bisect_left(ends, card.start + 1)
        return first == len(others) or others[first][0] >= card.end

    return list(filter(is_alone, cards))


def replace_cards(text: str, cards: Iterable[Card], shown: Callable[[str], str]) -> str:
    """The text with its cards as they are to be shown."""
    pieces, done = [], 0
    for card in cards:
        pieces += [text[done : card.start], shown(card.digits)]
        done = card.end
    return "".join(pieces) + text[done:]


def _cards_of(run: re.Match[str]) -> Iterator[Card]:
    """The cards among groups of digits, which may have other numbers beside them."""
    if run.end() - run.start() < _SHORTEST:
        return
    groups, at = list(_GROUP.finditer(run.string, *run.span())), 0
    sizes = tuple(len(group["digits"]) for group in groups)
    while at < len(groups):
        for count in range(min(_MOST_GROUPS, len(groups) - at), 0, -1):
            if sizes[at : at + count] not in _GROUPINGS:
                continue
            found = groups[at : at + count]
            digits = "".join(group["digits"] for group in found)
            if _is_card(found, digits):
                yield Card(found[0].start("digits"), found[-1].end(), digits)
                at += len(found)
                break
        else:
            at += 1


def _is_card(groups: list[re.Match[str]], digits: str) -> bool:
    return (
        _ISSUED.match(digits) is not None
        and len({group["gap"] for group in groups[1:]}) <= 1
        and _has_check_digit(digits)
    )


def _has_check_digit(digits: str) -> bool:
    """By the formula of Luhn."""
    backwards = digits[::-1]
    return (sum(map(int, backwards[::2])) + sum(map(int, backwards[1::2].translate(_DOUBLED)))) % 10 == 0
