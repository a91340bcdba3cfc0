"""The clients of OpenAI and Anthropic, which are generated alike. Errors with a status are classified by it."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, GARBLED, QUOTA, TRANSIENT, Entry

_TYPES = {
    "APIConnectionError": Entry(TRANSIENT, "connection failed"),
    "APIError": Entry(AMBIGUOUS, "API error"),
    "APIResponseValidationError": Entry(GARBLED, "answer not as expected"),
    "APITimeoutError": Entry(TRANSIENT, "timed out"),
}
_EXHAUSTED = {code: Entry(QUOTA, "quota exhausted") for code in ("insufficient_quota", "billing_hard_limit_reached")}

PACKS = (
    Pack("openai", types=_TYPES, codes=(Codes("openai.APIError", "code", _EXHAUSTED),), wraps=True),
    Pack("anthropic", types=_TYPES, wraps=True),
)
