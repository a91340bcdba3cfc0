"""A partner's API on a bad day, and a pipeline that gets all of its pages anyway.

Run it: python examples/partner_pages.py

The first half is the partner, played by the server that redrive ships for tests. The second half is the pipeline:
a Service, an HTTP client on top of it, and a loop.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections import Counter

import httpx

import redrive
from redrive.model.calls import Attempt, BreakerChanged, Event, KeyCooled, TokenRefreshed
from redrive.testing import Answer, FaultyServer, Request

PAGES = 600
QUOTA = {"error": {"code": 403, "errors": [{"reason": "quotaExceeded"}]}}


class Partner:
    """Two accounts, tokens that expire, and a plan of what goes wrong at which page."""

    def __init__(self, server: FaultyServer, seed: int = 4) -> None:
        pages = random.Random(seed).sample(range(50, PAGES), 21)
        self.faults: dict[int, Answer | str] = {
            **dict.fromkeys(pages[:12], Answer(503)),
            **dict.fromkeys(pages[12:14], Answer(429, retry_after=1)),
            **dict.fromkeys(pages[14:18], Answer(json=["half a page"] * 20, reset="mid-body")),
            pages[18]: Answer(hang=True),
            pages[19]: "token expires",
            pages[20]: "account used up",
        }
        self.tokens = 0
        self.expired: set[str] = set()
        self.used_up: set[str] = set()
        server.on("/pages/*", self.answer)

    def log_in(self, account: str) -> str:
        self.tokens += 1
        return f"{account}-token-{self.tokens:04}"

    def answer(self, request: Request) -> Answer:
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token in self.expired:
            return Answer(401)
        if token.split("-")[0] in self.used_up:
            return Answer(403, json=QUOTA)
        page = int(request.path.rsplit("/", 1)[1])
        fault = self.faults.pop(page, None)
        if fault == "token expires":
            self.expired.add(token)
            return Answer(401)
        if fault == "account used up":
            self.used_up.add(token.split("-")[0])
            return Answer(403, json=QUOTA)
        if isinstance(fault, Answer):
            return fault
        return Answer(json={"page": page, "deliveries": [page * 10 + n for n in range(10)]})


def fetch_all(server: FaultyServer, partner: Partner, events: list[Event]) -> list[dict[str, object]]:
    """The pipeline."""
    service = redrive.Service(
        "partner",
        retry=redrive.Retry(base=0.1, cap=2.0),
        breaker=redrive.Breaker(failures=5, window=60.0, cooldown=30.0),
        credentials=redrive.KeyPool(
            [
                redrive.Token(lambda: partner.log_in("north")),
                redrive.Token(lambda: partner.log_in("south")),
            ],
            resets="00:00 America/Los_Angeles",
        ),
        timeout=1.0,
        on_event=events.append,
    )
    pages = []
    with httpx.Client(transport=service.httpx_transport(), base_url=server.url) as client:
        for page in range(PAGES):
            pages.append(client.get(f"/pages/{page}").raise_for_status().json())
            show_progress(page + 1)
    return pages


def show_progress(done: int) -> None:
    if sys.stderr.isatty():
        filled = 40 * done // PAGES
        print(f"\r  {'━' * filled}{'╌' * (40 - filled)} {done}/{PAGES} pages", end="", file=sys.stderr)
        if done == PAGES:
            print(file=sys.stderr)


def tell(pages: list[dict[str, object]], events: list[Event], requests: int, seconds: float) -> bool:
    """What happened, as a story with numbers; whether every page came once and in order."""
    attempts = [event for event in events if isinstance(event, Attempt)]
    failed = Counter(attempt.outcome for attempt in attempts if attempt.outcome != "success")
    waited = sum(attempt.wait_s or 0 for attempt in attempts)
    complete = [page["page"] for page in pages] == list(range(PAGES))
    print(f"{len(pages)} pages, {'every one once and in order' if complete else 'NOT COMPLETE'}, in {seconds:.1f} s")
    print(f"  {requests} requests, {requests - PAGES} of them repeats, {waited:.1f} s of waiting")
    meaning = {
        "transient": "503s, broken connections and a hang: waited with jitter, repeated",
        "rate_limited": "429s: waited as long as the partner asked, repeated",
        "auth": "401s: refreshed the token once, repeated once",
        "quota": "403s with quotaExceeded: rested the account until its reset, used the other",
    }
    for outcome, count in failed.most_common():
        print(f"  {count:4} {outcome:13} {meaning.get(outcome, '')}")
    for event in events:
        if isinstance(event, KeyCooled):
            print(f"  key …{event.key_id} rests until {event.until:%Y-%m-%d %H:%M} UTC: {event.reason}")
        elif isinstance(event, TokenRefreshed) and event.generation > 1:
            print(f"  token …{event.key_id} fetched anew")
        elif isinstance(event, BreakerChanged):
            print(f"  circuit {event.before} → {event.after}")
    return complete


def main() -> int:
    logging.getLogger("redrive").setLevel(logging.ERROR)  # the story below says it all
    print(f"Fetching {PAGES} pages from a partner with a bad day …")
    events: list[Event] = []
    began = time.monotonic()
    with FaultyServer() as server:
        pages = fetch_all(server, Partner(server), events)
        complete = tell(pages, events, server.count(), time.monotonic() - began)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
