"""Several pages at once, by threads or by tasks: order and checkpoint are exact, and nothing is left behind."""

import asyncio
import contextlib
import functools
import json
import os
import random
import threading
import time
from collections import Counter

import httpx
import pytest

import redrive
from redrive import Breaker, Retry, Service, rows
from redrive.errors import SourceError
from redrive.testing import Answer, FakeClock, FaultyServer, set_testing

LAST = 45


@pytest.fixture(autouse=True)
def without_waiting():
    with set_testing():
        yield


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("redrive-pages")] == []


@pytest.fixture
def server():
    with FaultyServer() as server:
        server.on("/pages/*", lambda request: Answer(json=items(int(request.path.rsplit("/", 1)[1]))))
        yield server


@pytest.fixture
def service():
    return Service("partner", breaker=None, budget=None)


@contextlib.contextmanager
def async_client(server, **options):
    """Made and closed outside of any loop's life, as a program that is not async itself does it."""
    client = httpx.AsyncClient(base_url=server.url, timeout=20, **options)
    yield client
    asyncio.run(client.aclose())


@pytest.fixture(params=["plain", "async"])
def fetch(request, server):
    if request.param == "plain":
        with httpx.Client(base_url=server.url, timeout=20) as client:
            yield lambda page: client.get(f"/pages/{page}")
        return
    with async_client(server) as client:

        async def fetch(page):
            return await client.get(f"/pages/{page}")

        yield fetch


def items(page):
    return [{"id": 10 * page}, {"id": 10 * page + 1}] if 1 <= page <= LAST else []


def rows_of(numbers):
    return [row for number in numbers for row in items(number)]


def read_all(source, most=5, position=None):
    reading = source.open(position, source.identity())
    batches = []
    try:
        while (batch := reading.read(most)) is not None:
            batches.append(batch)
    except Exception as error:
        return batches, error
    finally:
        reading.close()
    return batches, None


def records(batches):
    return [record for batch in batches for record in batch.rows.records]


def numbers(server):
    return [int(request.path.rsplit("/", 1)[1]) for request in server.requests]


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_are_in_order_whatever_the_order_of_pages(server, service, fetch, in_flight, seed):
    chance = random.Random(seed)
    for page in range(1, LAST + 3):
        faults = [Answer(503), Answer(reset="before"), Answer(body="{"), Answer(500)][: chance.choice([0, 0, 0, 1])]
        server.on(f"/pages/{page}", *faults, Answer(json=items(page), delay=chance.choice([0, 0, 0.01, 0.03])))
    batches, error = read_all(rows.pages(service, fetch, in_flight=in_flight))
    assert error is None
    assert records(batches) == rows_of(range(1, LAST + 1))
    assert [batch.next["token"] for batch in batches] == [batch.done + 1 for batch in batches]
    assert batches[-1].done == LAST


def test_run_resumes_after_every_batch(service, fetch):
    source = rows.pages(service, fetch, in_flight=8)
    batches, _ = read_all(source, most=7)
    for number, batch in enumerate(batches):
        rest, error = read_all(source, most=7, position=json.loads(json.dumps(batch.next)))
        assert error is None
        assert records(rest) == records(batches[number + 1 :])


def test_pages_are_fetched_concurrently_up_to_the_limit(service):
    lock, together, most = threading.Lock(), 0, 0
    met = threading.Barrier(4)

    def fetch(page):
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        if 2 <= page <= 5:  # the first page is fetched by itself, for the identity of the input
            met.wait(30)  # passed only by four at a time
        with lock:
            together -= 1
        return items(page)

    batches, error = read_all(rows.pages(service, fetch, in_flight=4))
    assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
    assert most == 4


def test_tasks_run_concurrently_up_to_the_limit(service):
    together, most = 0, 0

    async def fetch(page):
        nonlocal together, most
        together += 1
        most = max(most, together)
        for _ in range(10):
            await asyncio.sleep(0)
        together -= 1
        return items(page)

    batches, error = read_all(rows.pages(service, fetch, in_flight=7))
    assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
    assert most == 7


def test_error_is_raised_after_the_pages_before_it(server, service, fetch):
    for page in range(1, 7):
        server.on(f"/pages/{page}", Answer(json=items(page), delay=0.05))
    server.on("/pages/7", Answer(401))
    batches, error = read_all(rows.pages(service, fetch, in_flight=8), most=1_000)
    assert records(batches) == rows_of(range(1, 7))
    assert batches[-1].next == {"token": 7, "pages": 6}
    assert redrive.classify(error).kind == "auth"
    assert server.count("/pages/7") == 1


def test_no_page_is_started_behind_a_rejected_key(server, service, fetch):
    server.on("/pages/*", Answer(401))
    batches, error = read_all(rows.pages(service, fetch, in_flight=8))
    assert batches == []
    assert redrive.classify(error).kind == "auth"
    assert set(numbers(server)) <= set(range(1, 9))
    assert max(Counter(numbers(server)).values()) == 1


def test_pages_fetched_behind_the_end_are_ignored(server, service, fetch):
    server.on(f"/pages/{LAST + 1}", Answer(json=[]))
    for page in range(LAST + 2, LAST + 30):
        server.on(f"/pages/{page}", Answer(500))
    batches, error = read_all(rows.pages(service, fetch, in_flight=8, bad_page="quarantine"))
    assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
    assert sum(len(batch.unreadable) for batch in batches) == 0
    assert batches[-1].done == LAST


def test_no_page_beyond_the_limit_is_fetched(server, service, fetch):
    batches, error = read_all(rows.pages(service, fetch, in_flight=8, limit=11))
    assert (records(batches), error) == (rows_of(range(1, 12)), None)
    assert sorted(numbers(server)) == list(range(1, 12))


def test_bad_pages_are_quarantined_in_order(server, service, fetch):
    for page in (3, 17, 18, LAST):
        server.on(f"/pages/{page}", Answer(body="<html>"))
    server.on("/pages/30", Answer(503))
    server.on("/pages/40", Answer(404))
    batches, error = read_all(rows.pages(service, fetch, in_flight=8, bad_page="quarantine"))
    assert error is None
    bad = [3, 17, 18, 30, 40, LAST]
    assert records(batches) == rows_of(page for page in range(1, LAST) if page not in bad)
    assert [lost.raw["page"] for batch in batches for lost in batch.unreadable] == bad


def test_reading_may_continue_when_the_service_is_back(server, service, fetch):
    server.on("/pages/3", Answer(503))
    reading = rows.pages(service, fetch, in_flight=4).open(None, {})
    try:
        assert reading.read(1_000).rows.records == rows_of([1, 2])
        with pytest.raises(redrive.RetriesExhausted):
            reading.read(1_000)
        server.on("/pages/3", Answer(json=items(3)))
        assert reading.read(1_000).rows.records == rows_of(range(3, LAST + 1))
        assert reading.read(1_000) is None
    finally:
        reading.close()


# ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_cancels_pages_in_flight(server, service):
    server.on("/pages/2", Answer(hang=True))
    cancelled = []
    with async_client(server) as client:

        async def fetch(page):
            try:
                return await client.get(f"/pages/{page}")
            except asyncio.CancelledError:
                cancelled.append(page)
                raise

        reading = rows.pages(service, fetch, in_flight=2).open(None, {})
        assert reading.read(1).rows.records == items(1)
        reading.close()
        reading.close()
    assert cancelled == [2]


def test_close_leaves_a_hanging_thread_without_another_attempt(monkeypatch):
    monkeypatch.setattr("redrive.rows.sources.pages.fetch.PATIENCE", 0.05)
    attempts, begun, go = [], threading.Event(), threading.Event()

    def fetch(page):
        if page == 1:
            begun.wait(30)
            return items(1)
        attempts.append(page)
        begun.set()
        go.wait(30)
        raise ConnectionResetError

    reading = rows.pages(Service("partner"), fetch, in_flight=2).open(None, {})
    assert reading.read(1).rows.records == items(1)
    reading.close()
    go.set()
    monkeypatch.setattr("redrive.rows.sources.pages.fetch.PATIENCE", 30)
    reading.close()
    assert attempts == [2]


def test_unread_source_can_be_closed(service, fetch):
    rows.pages(service, fetch, in_flight=3).open(None, {}).close()


# ── async ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_client_serves_all_readings_of_several_sources(server, service):
    loops = set()
    with async_client(server) as client:

        async def fetch(page):
            loops.add(asyncio.get_running_loop())
            return await client.get(f"/pages/{page}")

        for _ in range(2):
            source = rows.pages(service, fetch)
            for _ in range(2):
                batches, error = read_all(source)
                assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
            assert source.again({"page": 3, "service": "partner", "body": None}, source.identity()) == items(3)
    assert len(loops) == 1
    assert len({request.connection for request in server.requests}) == 1


def test_no_connection_of_the_client_is_lost_at_the_end(server, service):
    with async_client(server, limits=httpx.Limits(max_connections=8)) as client:

        async def fetch(page):
            return await client.get(f"/pages/{page}")

        for _ in range(12):  # one that is lost at every end would leave none
            batches, error = read_all(rows.pages(service, fetch, in_flight=8))
            assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_process_has_a_loop_of_its_own(service):
    async def fetch(page):
        await asyncio.sleep(0)
        return items(page)

    source = rows.pages(service, fetch, in_flight=2)
    batches, _ = read_all(source)
    assert records(batches) == rows_of(range(1, LAST + 1))
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if records(read_all(source)[0]) == rows_of(range(1, LAST + 1)) else 1
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert records(read_all(source)[0]) == records(batches)


async def test_source_works_inside_a_running_loop(server, service):
    ours = asyncio.get_running_loop()
    theirs = set()
    async with httpx.AsyncClient(base_url=server.url) as client:

        async def fetch(page):
            theirs.add(asyncio.get_running_loop())
            return await client.get(f"/pages/{page}")

        source = rows.pages(service, fetch, in_flight=4)
        batches, error = read_all(source)
        assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
        batches, error = await asyncio.to_thread(read_all, source)
        assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
    assert ours not in theirs


def test_two_readings_may_be_open_at_once(service, fetch):
    source = rows.pages(service, fetch, in_flight=3)
    first, second = source.open(None, {}), source.open(None, {})
    try:
        assert first.read(1).rows.records == second.read(1).rows.records == items(1)
        first.close()
        assert second.read(1).rows.records == items(2)
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("form", ["guarded", "partial", "method"])
def test_async_functions_of_every_form_are_recognized(service, form):
    class Api:
        async def fetch(self, page):
            return items(page)

        async def __call__(self, page):
            return items(page)

    async def fetch(_, page):
        return items(page)

    forms = {"guarded": service(Api().fetch), "partial": functools.partial(fetch, None), "method": Api()}
    batches, error = read_all(rows.pages(service, forms[form]))
    assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)


def test_plain_function_that_returns_a_coroutine_is_rejected(service):
    async def fetch(page):
        return []

    _, error = read_all(rows.pages(service, lambda page: fetch(page)))
    assert isinstance(error, SourceError)
    assert "define it with `async def`" in str(error)


def test_responses_with_awaitable_bodies_are_read(server, service):
    import aiohttp

    async def fetch(page):
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/pages/{page}") as response:
            await response.read()
            return response

    server.on("/pages/2", Answer(body="<html>"))
    server.on("/pages/3", Answer(json=items(3), truncate=True), Answer(json=items(3)))
    batches, error = read_all(rows.pages(service, fetch, limit=4, bad_page="quarantine"))
    assert (records(batches), error) == (rows_of([1, 3, 4]), None)
    assert [lost.raw for batch in batches for lost in batch.unreadable] == [
        {"page": 2, "service": "partner", "body": "<html>"}
    ]


def test_cursors_are_followed_by_an_async_fetch(service):
    async def fetch(cursor):
        page = cursor or 1
        return {"items": items(page), "next": page + 1 if page < LAST else None}

    batches, error = read_all(rows.pages(service, fetch, by="cursor"))
    assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)


class TestHalfOpenCircuit:
    """Pages in flight beside the probe of a half-open circuit wait for it."""

    @pytest.fixture
    def recovered(self):
        """A service whose circuit has opened, and whose cooldown is over."""
        clock = FakeClock()
        service = Service("partner", breaker=Breaker(failures=1), retry=Retry(attempts=1), clock=clock)

        def fail():
            raise ConnectionError("down")

        with pytest.raises(ConnectionError):
            service.call(fail)
        clock.advance(60)
        return service

    def test_threads_wait_for_probe(self, recovered):
        def fetch(page):
            time.sleep(0.1)
            return items(page)

        batches, error = read_all(rows.pages(recovered, fetch, in_flight=8, identity="today"))
        assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)

    def test_coroutines_wait_for_probe(self, recovered):
        async def fetch(page):
            await asyncio.sleep(0.1)
            return items(page)

        batches, error = read_all(rows.pages(recovered, fetch, in_flight=8, identity="today"))
        assert (records(batches), error) == (rows_of(range(1, LAST + 1)), None)
