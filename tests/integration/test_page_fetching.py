"""Fetch 3,000 pages from a service with faults: every page once, in order, with the planned retries only."""

import asyncio
import random
import threading
from collections import Counter

import httpx
import pytest

from redrive import Breaker, KeyPool, Retry, Service, Token
from redrive.model.calls import KeyCooled, TokenRefreshed
from redrive.testing import Answer, FaultyServer

PAGES = 3_000
QUOTA = {"error": {"code": 403, "errors": [{"reason": "quotaExceeded"}]}}


class Partner:
    """The server's plan: which page fails how, at which pages tokens expire and the account in use is used up."""

    def __init__(self, server, seed=7):
        self.lock = threading.Lock()
        self.issued = []
        self.expired = set()
        self.drained = set()
        self.good_answers = Counter()
        pages = random.Random(seed).sample([page for page in range(PAGES) if page % 800], 44)
        self.hung = pages[43]
        self.faults = {
            **dict.fromkeys(pages[:30], Answer(503)),
            **dict.fromkeys(pages[30:33], Answer(429, retry_after=1)),
            **dict.fromkeys(pages[33:38], Answer(reset="before")),
            **dict.fromkeys(pages[38:43], Answer(json=["x"] * 50, reset="mid-body")),
            self.hung: Answer(hang=True),
            800: "expire",
            1600: "expire",
            2400: "drain",
        }
        server.on("/pages/*", self.answer)

    def patience(self, page):
        """Seconds for an answer: few where there will be none, many where there will be, for a machine may be busy."""
        return 3.0 if page == self.hung else 60.0

    def log_in(self, account):
        def fetch():
            token = f"{account}-token-{len(self.issued):04}"
            self.issued.append(token)
            return token

        return Token(fetch)

    def answer(self, request):
        page = int(request.path.rsplit("/", 1)[1])
        token = request.headers.get("Authorization").removeprefix("Bearer ")
        account = token.split("-")[0]
        with self.lock:
            if token in self.expired:
                return Answer(401)
            if account in self.drained:
                return Answer(403, json=QUOTA)
            fault = self.faults.pop(page, None)
            if fault == "expire":
                self.expired.add(token)
                return Answer(401)
            if fault == "drain":
                self.drained.add(account)
                return Answer(403, json=QUOTA)
            if fault is not None:
                return fault
            self.good_answers[page] += 1
        return Answer(json={"page": page, "rows": [page * 10, page * 10 + 1]})


@pytest.fixture
def server():
    with FaultyServer() as server:
        yield server


@pytest.fixture
def partner(server):
    return Partner(server)


@pytest.fixture
def events():
    return []


@pytest.fixture
def service(partner, events):
    return Service(
        "partner",
        retry=Retry(base=0.01, cap=0.1, within=100),
        breaker=Breaker(),
        credentials=KeyPool([partner.log_in("first"), partner.log_in("second")], resets="00:00 America/Los_Angeles"),
        timeout=60.0,
        on_event=events.append,
    )


def check(results, server, partner, service, events, *, in_flight):
    assert results == [{"page": page, "rows": [page * 10, page * 10 + 1]} for page in range(PAGES)]
    assert set(partner.good_answers.values()) == {1}
    assert len(partner.good_answers) == PAGES
    assert partner.faults == {}  # every planned fault was met

    answered = Counter(str(request.status) for request in server.requests)
    assert answered["503"] == 30
    assert answered["429"] == 3
    assert answered["reset before"] == answered["reset mid-body"] == 5
    assert answered["hang"] == 1
    # A token expires, and an account is used up, for every request that is then in flight.
    assert 2 <= answered["401"] <= 2 * in_flight
    assert 1 <= answered["403"] <= in_flight
    planned = 30 + 3 + 10 + 1 + answered["401"] + answered["403"]
    assert sum(answered.values()) == PAGES + planned

    stats = service.stats()
    assert stats.calls == stats.successes == PAGES
    assert stats.repeats == planned
    assert stats.repeats - answered["401"] - answered["403"] <= 10 + 0.1 * PAGES  # the retry budget
    assert service.circuit == "closed"
    drained = [event for event in events if isinstance(event, KeyCooled) and event.reason == "quota used up"]
    assert len({event.key_id for event in drained}) == 1
    # Each account logs in once, and once more per token that expired, however many callers met the 401.
    assert len(partner.issued) == 2 + 2 == sum(isinstance(event, TokenRefreshed) for event in events)


def test_fetches_pages_one_by_one(server, partner, service, events):
    with httpx.Client(transport=service.httpx_transport(), base_url=server.url) as client:
        answers = (client.get(f"/pages/{page}", timeout=partner.patience(page)) for page in range(PAGES))
        results = [answer.raise_for_status().json() for answer in answers]
    check(results, server, partner, service, events, in_flight=1)


async def test_fetches_pages_by_fifty_tasks(server, partner, service, events):
    results = [None] * PAGES
    pages = iter(range(PAGES))

    async with httpx.AsyncClient(transport=service.httpx_transport(), base_url=server.url) as client:

        async def work():
            for page in pages:
                response = await client.get(f"/pages/{page}", timeout=partner.patience(page))
                results[page] = response.raise_for_status().json()

        await asyncio.gather(*(work() for _ in range(50)))
    check(results, server, partner, service, events, in_flight=50)
