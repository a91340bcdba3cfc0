"""A service under trio waits, limits and refreshes as under asyncio."""

import httpx
import pytest
import trio
import trio.testing

from redrive import Retry, Service, Token
from redrive.testing import Answer, FaultyServer

STEADY = Retry(attempts=4, base=5, cap=5, jitter="none")


def run(function):
    """Run under trio, on a clock that jumps to the next deadline; the seconds that passed on it."""

    async def main():
        began = trio.current_time()
        await function()
        return trio.current_time() - began

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_backoff_is_slept():
    calls = []

    async def work():
        calls.append(1)
        if len(calls) < 4:
            raise ConnectionResetError
        return "done"

    async def main():
        assert await Service("s", retry=STEADY).acall(work) == "done"

    assert run(main) == pytest.approx(15)


def test_backoff_between_blocks_is_slept():
    async def main():
        async for attempt in Service("s", retry=STEADY).attempts():
            with attempt:
                if attempt.number < 3:
                    raise ConnectionResetError

    assert run(main) == pytest.approx(10)


def test_attempt_is_cancelled_at_its_timeout():
    async def hang():
        await trio.sleep(3600)

    async def main():
        with pytest.raises(TimeoutError, match="not finished within 30 s"):
            await Service("s", timeout=30, retry=Retry(attempts=2, base=5, cap=5, jitter="none")).acall(hang)

    assert run(main) == pytest.approx(65)


def test_cancellation_passes():
    calls = []

    async def hang():
        calls.append(1)
        await trio.sleep(3600)

    async def main():
        with trio.move_on_after(1) as scope:
            await Service("s", retry=STEADY).acall(hang)
        assert scope.cancelled_caught

    assert run(main) == pytest.approx(1)
    assert len(calls) == 1


@pytest.mark.parametrize("blocking", [False, True])
def test_token_is_fetched_once_for_all(blocking):
    fetched, used = [], []

    def fetch():
        fetched.append(1)
        return f"token-{len(fetched):04}"

    async def afetch():
        await trio.sleep(2)
        return fetch()

    async def use(*, credential):
        used.append(credential)

    async def main():
        service = Service("s", credentials=Token(fetch if blocking else afetch))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(service.acall, use)

    run(main)
    assert used == ["token-0001"] * 5


def test_cancelled_fetch_is_taken_over_by_another_caller():
    fetched = []

    async def fetch():
        fetched.append(1)
        await trio.sleep(3600 if len(fetched) == 1 else 1)
        return f"token-{len(fetched):04}"

    async def use(*, credential):
        return credential

    async def main():
        service = Service("s", credentials=Token(fetch))
        with trio.move_on_after(1):
            await service.acall(use)
        assert await service.acall(use) == "token-0002"

    run(main)


def test_httpx_client_is_guarded():
    async def main(url):
        transport = Service("s", timeout=30, retry=Retry(base=0.001, cap=0.001)).httpx_transport()
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.get(url)).status_code

    with FaultyServer() as server:
        server.on("/page", Answer(503), Answer(200))
        assert trio.run(main, f"{server.url}/page") == 200
