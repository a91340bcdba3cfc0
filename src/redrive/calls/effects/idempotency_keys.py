"""The idempotency keys of one logical call: which were sent inside its attempts, and what became of the requests.

A derived key protects a request only if the next attempt sends it with the same key. What is sent with another key, or
an equal request that is meant as a second one, is refused before it is sent, or the call is not repeated.
"""

from __future__ import annotations

from itertools import count
from typing import NoReturn

from redrive.errors import Permanent

EQUAL_REQUESTS = (
    "equal requests were sent in one attempt, and it cannot be told whether another attempt would start over or "
    "continue; send each with an Idempotency-Key of your own"
)
NO_KEY = (
    "a request was sent without an Idempotency-Key, since its body cannot be read in advance, and another attempt may "
    "send it again; pass bytes, or an Idempotency-Key of your own"
)


class SentKeys:
    """Shared by all attempts of a call. Tracks derived keys of requests that are not idempotent."""

    def __init__(self) -> None:
        self.equal = False
        """Whether one attempt has sent equal requests, with a key each."""
        self._requests: dict[str, int] = {}  # derived key → hash of what it was derived from
        self._sent: set[str] = set()
        self._unknown: set[str] = set()  # sent, and neither answered nor turned away
        self._answered: set[str] = set()
        self._first: set[str] = set()  # what the first attempt began with: several keys where requests overlap
        self._begins = True
        self._numbers = count(1)
        self._unprotected: set[str] = set()  # requests without a key on which the server may have acted
        self._follows: set[str] = set()  # idempotent requests that an attempt first sent after one that was answered
        self._precedes: set[str] = set()  # and those that it sent before
        self.begin()

    def begin(self) -> None:
        """Begin an attempt."""
        self._sent_before = set(self._sent)
        self._unknown_before = set(self._unknown)
        self._answered_before = set(self._answered)
        self._now: set[str] = set()
        self._equal_to: set[int] = set()
        self._turned_away: dict[int, list[str]] = {}
        self._resumes: bool | None = None

    def issued(self, key: str, request: int) -> None:
        """Note what a key was derived from."""
        self._requests[key] = request

    def turned_away(self, request: int) -> str | None:
        """The key of an equal request of this attempt that the server did not act on: it has not been used."""
        keys = self._turned_away.get(request)
        return keys.pop() if keys else None

    def why_not_again(self) -> str | None:
        """Why the call must not be repeated, whatever it fails for; None where it may."""
        return EQUAL_REQUESTS if self.equal else NO_KEY if self._unprotected else None

    def protects(self, key: object) -> bool:
        """Whether this call has sent a request with that key, and would send it with the same again."""
        return key in self._sent

    def send(self, key: str, what: str) -> None:
        """Note that a request is about to be sent.

        Raises:
            Permanent: the key would not protect the request, or would take it for one that was answered.
        """
        request = self._requests.get(key)
        if request is not None:  # else the caller chose the key, or it is that of the whole call
            self._refuse_what_is_unsafe(key, what)
            if request in self._equal_to and key not in self._now:
                self.equal = True
            if self._begins:
                self._first.add(key)
            self._equal_to.add(request)
            self._now.add(key)
            self._answered.discard(key)
            self._unknown.add(key)
        self._sent.add(key)

    def send_unprotected(self) -> str:
        """Note that a request without a key is about to be sent; the answer stands for it in `ended`."""
        name = f"without a key {next(self._numbers)}"
        self._unprotected.add(name)
        return name

    def pass_by(self, key: str) -> None:
        """Note that an idempotent request is about to be sent: it tells where an attempt begins.

        One that begins with what an earlier attempt first sent after its first answer does not start over.
        """
        if self._now & self._answered:
            self._follows.add(key)
            return
        if self._now:
            return
        if self._resumes or (key in self._follows and key not in self._precedes):
            self._resumes = True
        else:
            self._precedes.add(key)

    def _refuse_what_is_unsafe(self, key: str, what: str) -> None:
        if not self._sent_before:
            return
        if self._resumes is None:
            self._resumes = key not in self._first
        if key not in self._sent_before and not self._unknown_before <= self._now:
            _refuse(what, "an earlier attempt of the call sent a request whose outcome is unknown, not this one")
        if self._resumes and key in self._answered_before and key not in self._now:
            _refuse(what, "an equal request was answered in an earlier attempt, which this attempt continues")

    def ended(self, key: str, *, acted: bool | None, give_back: bool) -> None:
        """Note what became of a request.

        Args:
            acted: whether the server has acted on it; None where that is not known.
            give_back: whether an equal request of the same attempt is to have the key if the server did not act.
        """
        if acted is False:
            self._unprotected.discard(key)
        request = self._requests.get(key)
        if request is None:
            return
        self._begins = False
        if acted is None:
            return
        self._unknown.discard(key)
        if acted:
            self._answered.add(key)
        elif give_back:
            self._equal_to.discard(request)
            self._turned_away.setdefault(request, []).append(key)


def _refuse(what: str, why: str) -> NoReturn:
    raise Permanent(
        f"{what} was not sent: {why}. Send the same requests in every attempt, without times or random values in them, "
        "or pass an Idempotency-Key of your own"
    )
