"""A request in flight when a time limit ends its attempt is not sent again."""

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait

import aiohttp
import httpx
import pytest
import requests
import trio

from redrive import Retry, Service
from redrive.testing import Answer, FaultyServer

QUICK = Retry(attempts=2, base=0.001, cap=0.002)
LIMIT = 0.4
THREADS = ThreadPoolExecutor(8)
SLOW = {"no answer": Answer(hang=True), "slow body": Answer(200, body=b"x" * 100, drip=0.1)}


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


@pytest.fixture
def payments(server):
    """Counts the POSTs that arrive in the test; on a busy machine the limit may come before the first one leaves."""
    before = server.count("/pay")
    return lambda: server.count("/pay") - before


async def by_httpx(method, url):
    async with httpx.AsyncClient(timeout=30, verify=False) as client:  # without the work of reading certificates
        return (await client.request(method, url)).text


async def by_aiohttp(method, url):
    async with aiohttp.ClientSession() as session, session.request(method, url) as response:
        return await response.text()


async def directly(send):
    return await send()


async def in_task_group(send):
    async with asyncio.TaskGroup() as group:
        group.create_task(send())


async def in_nested_task_groups(send):
    async with asyncio.TaskGroup() as group:
        group.create_task(in_task_group(send))


async def gathered(send):
    await asyncio.gather(asyncio.sleep(0), send(), asyncio.sleep(0))


async def in_awaited_task(send):
    await asyncio.create_task(send())


async def waited_for_as_set(send):
    await asyncio.wait({asyncio.create_task(send())})


async def under_wait_for(send):
    await asyncio.wait_for(send(), LIMIT)


async def under_timeout(send):
    async with asyncio.timeout(LIMIT):
        await send()


async def shielded_under_wait_for(send):
    await asyncio.wait_for(asyncio.shield(send()), LIMIT)


async def shielded_under_timeout(send):
    async with asyncio.timeout(LIMIT):
        await asyncio.shield(asyncio.create_task(send()))


async def waited_for_with_timeout(send):
    _, pending = await asyncio.wait({asyncio.create_task(send())}, timeout=LIMIT)
    if pending:
        raise TimeoutError


async def first_of_as_completed(send):
    for part in asyncio.as_completed([send()], timeout=LIMIT):
        await part


async def shielded(send):
    await asyncio.shield(send())


async def behind_an_event(send):
    done = asyncio.Event()

    async def work():
        await send()
        done.set()

    task = asyncio.create_task(work())
    await done.wait()
    await task


SURVIVING = [shielded_under_wait_for, shielded_under_timeout, waited_for_with_timeout, first_of_as_completed]


async def attempts_made(service, function):
    with pytest.raises(TimeoutError) as caught:
        await service.acall(function)
    return len(caught.value.redrive.attempts)


def in_wait(send):
    future = THREADS.submit(send)
    _, pending = wait([future], LIMIT)
    if pending:
        raise TimeoutError


def in_map(send):
    return list(THREADS.map(lambda _: send(), [1], timeout=LIMIT))


def in_dict(send):
    futures = {"pay": THREADS.submit(send)}
    return {name: future.result(LIMIT) for name, future in futures.items()}


def joined(send):
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(LIMIT)
    if thread.is_alive():
        raise TimeoutError


def in_own_executor(send):
    executor = ThreadPoolExecutor(1)
    try:
        executor.submit(send).result(LIMIT)
    finally:
        executor.shutdown(wait=False)


class TestServiceTimeout:
    @pytest.mark.parametrize(
        "run", [directly, in_task_group, in_nested_task_groups, gathered, in_awaited_task, waited_for_as_set]
    )
    @pytest.mark.parametrize("send", [by_httpx, by_aiohttp])
    @pytest.mark.parametrize("slow", SLOW)
    def test_post_is_not_retried(self, server, payments, slow, send, run):
        server.on("/pay", SLOW[slow])
        service = Service("bank", retry=QUICK, timeout=LIMIT)
        asyncio.run(attempts_made(service, lambda: run(lambda: send("POST", f"{server.url}/pay"))))
        assert payments() <= 1

    @pytest.mark.parametrize("run", [directly, in_task_group])
    def test_get_is_retried(self, server, run):
        server.on("/read", Answer(hang=True))
        service = Service("bank", retry=QUICK, timeout=0.1)
        made = asyncio.run(attempts_made(service, lambda: run(lambda: by_httpx("GET", f"{server.url}/read"))))
        assert made == 2

    def test_post_that_waits_for_a_connection_is_retried(self, server):
        server.on("/read", Answer(hang=True))

        async def main():
            async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=1)) as client:
                busy = asyncio.create_task(client.get(f"{server.url}/read"))
                await asyncio.sleep(0.1)
                service = Service("bank", retry=QUICK, timeout=0.1)
                made = await attempts_made(service, lambda: client.post(f"{server.url}/pay"))
                busy.cancel()
                return made

        assert asyncio.run(main()) == 2

    def test_post_of_a_sibling_task_is_not_blamed(self, server):
        server.on("/read", Answer(hang=True))
        server.on("/pay", Answer(hang=True))

        async def main():
            async with asyncio.TaskGroup() as group:
                sibling = group.create_task(by_httpx("POST", f"{server.url}/pay"))
                service = Service("bank", retry=QUICK, timeout=0.1)
                made = await attempts_made(service, lambda: by_httpx("GET", f"{server.url}/read"))
                sibling.cancel()
                return made

        assert asyncio.run(main()) == 2

    @pytest.mark.parametrize("slow", SLOW)
    def test_post_is_not_retried_under_trio(self, server, payments, slow):
        server.on("/pay", SLOW[slow])

        async def in_nursery():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 60)
                nursery.start_soon(by_httpx, "POST", f"{server.url}/pay")

        for most, pay in ((1, lambda: by_httpx("POST", f"{server.url}/pay")), (2, in_nursery)):
            trio.run(attempts_made, Service("bank", retry=QUICK, timeout=LIMIT), pay)
            assert payments() <= most


class TestFunctionTimeout:
    @pytest.mark.parametrize("run", [under_wait_for, under_timeout])
    @pytest.mark.parametrize("send", [by_httpx, by_aiohttp])
    @pytest.mark.parametrize("slow", SLOW)
    def test_post_is_not_retried(self, server, payments, slow, send, run):
        server.on("/pay", SLOW[slow])
        service = Service("bank", retry=QUICK)
        asyncio.run(attempts_made(service, lambda: run(lambda: send("POST", f"{server.url}/pay"))))
        assert payments() <= 1


class TestOutlivingTask:
    @pytest.mark.parametrize("run", [*SURVIVING, shielded, behind_an_event])
    @pytest.mark.parametrize("send", [by_httpx, by_aiohttp])
    @pytest.mark.parametrize("way", ["function", "block"])
    def test_post_is_not_retried(self, server, payments, send, run, way):
        server.on("/pay", Answer(hang=True))
        service = Service("bank", retry=QUICK, timeout=LIMIT if run in (shielded, behind_an_event) else None)

        async def pay():
            await run(lambda: send("POST", f"{server.url}/pay"))

        async def in_block():
            async for attempt in service.attempts():
                with attempt:
                    async with asyncio.timeout(attempt.timeout):
                        await pay()

        with pytest.raises(TimeoutError):
            asyncio.run(service.acall(pay) if way == "function" else in_block())
        assert payments() <= 1

    @pytest.mark.parametrize("run", SURVIVING)
    def test_get_is_retried(self, server, run):
        server.on("/read", Answer(hang=True))
        service = Service("bank", retry=QUICK)
        assert asyncio.run(attempts_made(service, lambda: run(lambda: by_httpx("GET", f"{server.url}/read")))) == 2

    @pytest.mark.parametrize("run", SURVIVING)
    def test_post_with_a_key_is_retried(self, server, run):
        server.on("/pay", Answer(hang=True))

        async def pay():
            async with httpx.AsyncClient(timeout=30, verify=False) as client:
                await run(lambda: client.post(f"{server.url}/pay", headers={"Idempotency-Key": "order-7"}))

        assert asyncio.run(attempts_made(Service("bank", retry=QUICK), pay)) == 2


class TestThreadRequest:
    def test_post_of_to_thread_is_not_retried(self, server, payments):
        server.on("/pay", Answer(delay=2 * LIMIT))
        service = Service("bank", retry=QUICK, timeout=LIMIT)
        pay = functools.partial(asyncio.to_thread, requests.post, f"{server.url}/pay")
        asyncio.run(attempts_made(service, pay))
        assert payments() <= 1

    @pytest.mark.parametrize(
        "wait", [lambda future: future.result(LIMIT), lambda future: [*as_completed([future], LIMIT)]]
    )
    def test_post_of_an_executor_is_not_retried(self, server, payments, wait):
        server.on("/pay", Answer(delay=2 * LIMIT))
        with ThreadPoolExecutor(2) as threads, pytest.raises(TimeoutError):
            Service("bank", retry=QUICK).call(lambda: wait(threads.submit(requests.post, f"{server.url}/pay")))
        assert payments() <= 1

    @pytest.mark.parametrize("wait", [in_wait, in_map, in_dict, joined, in_own_executor])
    def test_awaited_post_is_not_retried(self, server, payments, wait):
        server.on("/pay", Answer(delay=2 * LIMIT))
        with pytest.raises(TimeoutError):
            Service("bank", retry=QUICK).call(wait, lambda: requests.post(f"{server.url}/pay"))
        assert payments() <= 1

    def test_post_of_another_thread_is_not_blamed(self, server):
        server.on("/pay", Answer(delay=2 * LIMIT))
        server.on("/read", Answer(delay=2 * LIMIT))

        def read():
            return threads.submit(requests.get, f"{server.url}/read").result(0.1)

        with ThreadPoolExecutor(3) as threads:
            threads.submit(requests.post, f"{server.url}/pay")
            with pytest.raises(TimeoutError) as caught:
                Service("bank", retry=QUICK).call(read)
        assert len(caught.value.redrive.attempts) == 2
