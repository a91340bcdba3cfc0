"""Removes secrets from all texts that users or logs can see."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus

from redrive._internal.masking.cards import cards_in, may_hold_cards, replace_cards
from redrive._internal.masking.commands import mask_arguments, mask_commands
from redrive._internal.masking.credentials import mask_credentials
from redrive._internal.masking.documents import mask_bytes as _mask_bytes
from redrive._internal.masking.documents import mask_document
from redrive._internal.masking.excerpts import MARGIN as MARGIN
from redrive._internal.masking.excerpts import MaskedStream, end_of, start_of
from redrive._internal.masking.fields import mask_fields, mask_statements
from redrive._internal.masking.patterns import MASK as MASK
from redrive._internal.masking.patterns import is_secret_name as is_secret_name
from redrive._internal.masking.patterns import without_controls

__all__ = [
    "LONGEST",
    "MARGIN",
    "MASK",
    "is_secret_name",
    "last_four",
    "mask",
    "mask_all",
    "mask_bytes",
    "mask_end",
    "mask_start",
    "mask_stream",
    "remember",
]

# Keys and tokens in use, which may look like anything, in the forms in which a text may have them; the longest first.
_known: dict[str, None] = {}
_known_forms: tuple[tuple[str, str], ...] = ()
_MOST_KNOWN = 64  # each is looked for in every text

# The last four digits of a card may begin another. A text with more of them is made up, and would take too long.
_PASSES = 3

# Masking takes time, and no signal or timeout ends a search: about 0.3 s for this many characters of the worst kind.
LONGEST = 200_000


def remember(secret: str) -> None:
    """Mask this very text from now on: a server may quote the key that it rejects.

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
    """Return the text without credentials, and with only the last four digits of payment cards.

    Colours and other sequences for terminals are removed. Of a text over 200,000 characters the beginning is returned.
    """
    if len(text) > LONGEST:
        return f"{start_of(text, LONGEST, _mask)} ... ({len(text) - LONGEST:,} more characters)"
    return _mask(text)


def _mask(text: str) -> str:
    text = without_controls(text)
    for form, shown in _known_forms:
        if form in text:
            text = text.replace(form, shown)
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


def last_four(secret: str) -> str:
    """Return what may be shown of a key: its last four characters, and of a short one at most half."""
    return secret[len(secret) - min(4, len(secret) // 2) :]
