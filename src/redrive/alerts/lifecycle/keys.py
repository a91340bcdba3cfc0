"""Keys of alerts as they are stored and sent: the same text everywhere, without secrets, different for different keys.

A key may hold what another program chose, or the name of a table. Masking it only when it is sent would make one key of
two: a receiver such as PagerDuty would close the incident of one alert with the end of the other.
"""

from __future__ import annotations

from redrive.alerts.custom import CUSTOM
from redrive.alerts.delivery.safe_text import safe_line
from redrive.dlq.insert.digests import Digests
from redrive.store.database import Database

LONGEST = 255
"""Characters of a key, as PagerDuty takes them."""
_ROOM = 230  # characters of a masked key before its digest


class StoredKeys:
    """The stored forms of keys, for one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._digests: Digests | None = None

    def of(self, key: str) -> str:
        """Return the key under which an alert is stored and sent.

        It is the key itself, unless that would be masked or cut in a message: then it is what may be shown of it with a
        digest of the whole, keyed with the salt of the store. The stored form of a stored form is the same.
        """
        kind, _, name = key.partition(":")
        if _is_shown_as_it_is(key) and _is_shown_as_it_is(name):
            return key
        digest = self._digest(key)
        readable = f"{safe_line(key, _ROOM)} #{digest}"
        is_kept = readable.startswith(f"{kind}:") and _is_shown_as_it_is(readable)
        if is_kept and _is_shown_as_it_is(readable.partition(":")[2]):
            return readable
        return f"{safe_line(kind, _ROOM)}:#{digest}"

    def of_name(self, name: str) -> str:
        """Return the subject of an alert that a program opens under a key: the key as it is stored."""
        return self.of(f"{CUSTOM}:{name}").removeprefix(f"{CUSTOM}:")

    def _digest(self, key: str) -> str:
        if self._digests is None:
            self._digests = Digests.of(self._database)
        return self._digests.short(f"alert key:{key}")


def as_sent_before(key: str) -> str:
    """Return how a key was sent that an older version stored as it was given."""
    return safe_line(key, 1_000)


def _is_shown_as_it_is(text: str) -> bool:
    return safe_line(text, LONGEST) == text
