"""Removes secrets from all texts that users or logs can see."""

from __future__ import annotations

from typing import Any

from redrive._internal.masking.cards import cards_in, may_hold_cards, replace_cards
from redrive._internal.masking.commands import mask_arguments, mask_commands
from redrive._internal.masking.credentials import mask_credentials
from redrive._internal.masking.documents import mask_bytes as _mask_bytes
from redrive._internal.masking.documents import mask_document
from redrive._internal.masking.excerpts import MARGIN as MARGIN
from redrive._internal.masking.excerpts import MaskedStream, end_of, start_of
from redrive._internal.masking.fields import mask_fields, mask_statements
from redrive._internal.masking.known_values import last_four as last_four
from redrive._internal.masking.known_values import learn as learn
from redrive._internal.masking.known_values import learn_address as learn_address
from redrive._internal.masking.known_values import learn_url as learn_url
from redrive._internal.masking.known_values import mask_known
from redrive._internal.masking.known_values import mask_value as mask_value
from redrive._internal.masking.known_values import remember as remember
from redrive._internal.masking.patterns import MASK as MASK
from redrive._internal.masking.patterns import is_secret_name as is_secret_name
from redrive._internal.masking.patterns import without_controls

__all__ = [
    "LONGEST",
    "MARGIN",
    "MASK",
    "is_secret_name",
    "last_four",
    "learn",
    "learn_address",
    "learn_url",
    "mask",
    "mask_all",
    "mask_bytes",
    "mask_end",
    "mask_start",
    "mask_stream",
    "mask_value",
    "remember",
]

# The last four digits of a card may begin another. A text with more of them is made up, and would take too long.
_PASSES = 3

# Masking takes time, and no signal or timeout ends a search: about 0.3 s for this many characters of the worst kind.
LONGEST = 200_000


def mask(text: str) -> str:
    """Return the text without credentials, and with only the last four digits of payment cards.

    Colours and other sequences for terminals are removed. Of a text over 200,000 characters the beginning is returned.
    """
    if len(text) > LONGEST:
        return f"{start_of(text, LONGEST, _mask)} ... ({len(text) - LONGEST:,} more characters)"
    return _mask(text)


def _mask(text: str) -> str:
    text = mask_known(text)
    if (shown := without_controls(text)) != text:
        text = mask_known(shown)
    return _mask_cards(text) if may_hold_cards(text) else _mask_words(text)


def _mask_cards(text: str) -> str:
    """Without credentials and cards; a card that is used as a credential is hidden as one, in all its groups."""
    for _ in range(_PASSES):
        cards = cards_in(text)
        if not cards:
            break
        text = _mask_words(replace_cards(text, cards, str))
        text = replace_cards(text, cards_in(text), lambda digits: MASK + last_four(digits))
    return _mask_words(text)


def _mask_words(text: str) -> str:
    return mask_credentials(mask_fields(mask_statements(mask_commands(mask_arguments(text)))))


def mask_start(text: str, length: int) -> str:
    """Return no more than the first characters of a text, masked, without a secret that lies across the cut."""
    return start_of(text, length, mask)


def mask_end(text: str, length: int) -> str:
    """Return no more than the last characters of a text, masked, without a secret that lies across the cut."""
    return end_of(text, length, mask)


def mask_stream() -> MaskedStream:
    """Return what masks a text that comes in pieces."""
    return MaskedStream(mask)


def mask_all(value: Any) -> Any:
    """Return a document without secrets: texts and numbers are masked, and all values under the name of a secret."""
    return mask_document(value, mask)


def mask_bytes(data: bytes) -> bytes | str:
    """Return bytes as they are, or where they hold a secret: the masked text, or their size if they are no text."""
    return _mask_bytes(data, mask)
