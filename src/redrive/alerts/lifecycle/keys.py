"""Stored forms of alert keys: without secrets, unique, and the same in the store and in messages.

Used by the repository. A key may contain text that a user's program chose. If it were masked only when it is sent, two
keys could become equal, and a receiver such as PagerDuty would resolve the incident of one alert with the other.
"""

from __future__ import annotations

from redrive.alerts.conditions import CUSTOM
from redrive.alerts.delivery.format import safe_line
from redrive.dlq.insert.digests import Digests
from redrive.store.database import Database

LONGEST = 255
"""Maximum length of a key in characters; the limit of PagerDuty."""
_READABLE_LENGTH = 230  # characters of a masked key before its digest


class StoredKeys:
    """The stored forms of keys, for one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._digests: Digests | None = None

    def of(self, key: str) -> str:
        """Return the key under which an alert is stored and sent.

        This is the key itself, unless it would be masked or cut in a message. Then it is the masked key with a digest
        of the whole key, computed with the salt of the store. The stored form of a stored form is the same.
        """
        kind, _, name = key.partition(":")
        if _is_shown_unchanged(key) and _is_shown_unchanged(name):
            return key
        digest = self._digest(key)
        readable = f"{safe_line(key, _READABLE_LENGTH)} #{digest}"
        is_kept = readable.startswith(f"{kind}:") and _is_shown_unchanged(readable)
        if is_kept and _is_shown_unchanged(readable.partition(":")[2]):
            return readable
        return f"{safe_line(kind, _READABLE_LENGTH)}:#{digest}"

    def of_name(self, name: str) -> str:
        """Return the subject of an alert that a program opens under a key: the stored form of that key."""
        return self.of(f"{CUSTOM}:{name}").removeprefix(f"{CUSTOM}:")

    def _digest(self, key: str) -> str:
        if self._digests is None:
            self._digests = Digests.of(self._database)
        return self._digests.short(f"alert key:{key}")


def as_sent_before(key: str) -> str:
    """Return the form in which older versions sent a key that they stored unmasked."""
    return safe_line(key, 1_000)


def _is_shown_unchanged(text: str) -> bool:
    return safe_line(text, LONGEST) == text
