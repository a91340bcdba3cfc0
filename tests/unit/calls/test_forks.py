"""Services in forked children: the child does not wait for a lock that a thread of the parent had."""

import logging
import multiprocessing
import os
import signal
import threading
from contextlib import contextmanager, suppress

import pytest

import redrive
from redrive import CircuitOpen, KeyPool, Retry, Service, Token
from redrive.clock import SystemClock

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


class StuckClock(SystemClock):
    """Stops the thread of that name wherever it looks at the clock, with the locks it holds then."""

    def __init__(self):
        self.stuck = threading.Event()
        self.go_on = threading.Event()

    def monotonic(self):
        if threading.current_thread().name == "stuck" and getattr(self, "armed", False):
            self.stuck.set()
            self.go_on.wait()
        return super().monotonic()


def in_child(function):
    """Run in a forked child; whether it ended well within 20 s."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # a deadlock ends the child
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fail():
    raise ConnectionRefusedError


@pytest.fixture
def stuck():
    """Start a thread that stops with a lock; it is let go at the end."""
    clock = StuckClock()
    threads = []

    def start(work):
        clock.armed = True
        threads.append(threading.Thread(target=work, name="stuck", daemon=True))
        threads[-1].start()
        assert clock.stuck.wait(20)

    start.clock = clock
    yield start
    clock.go_on.set()
    for thread in threads:
        thread.join()


def test_circuit_lock_of_the_parent_does_not_stop_the_child(stuck):
    service = Service("s", clock=stuck.clock, retry=Retry(attempts=1))
    stuck(service.core.circuit.admit)

    def child():
        assert service.call(len, "abc") == 3
        with pytest.raises(ConnectionRefusedError):
            service.call(fail)
        assert service.stats().calls == 2

    assert in_child(child) == 0


def test_tally_lock_of_the_parent_does_not_stop_the_child(stuck):
    service = Service("s", clock=stuck.clock, retry=Retry(attempts=1))
    service.call(len, "abc")
    stuck(service.core.circuit.admit)
    counting = threading.Thread(target=service.stats, daemon=True)
    counting.start()  # holds its lock while it waits for the circuit's
    while not service.core.counters._folding:
        pass

    def child():
        with pytest.raises(ConnectionRefusedError):
            service.call(fail)
        assert service.stats().failures == {"transient": 1}

    assert in_child(child) == 0
    stuck.clock.go_on.set()
    counting.join()


def test_key_lock_of_the_parent_does_not_stop_the_child(stuck):
    service = Service("s", clock=stuck.clock, credentials=KeyPool(["key-1111", "key-2222"]))
    stuck(service.core.credentials.pick)

    def child():
        service.core.credentials.rejected(0)
        assert service.call(lambda *, credential: credential) == "key-2222"

    assert in_child(child) == 0


def test_fetch_of_the_parent_does_not_stop_the_child():
    fetching, go_on, parent = threading.Event(), threading.Event(), os.getpid()

    def fetch():
        if os.getpid() == parent:
            fetching.set()
            go_on.wait()
        return "token-0001"

    service = Service("s", credentials=Token(fetch))
    thread = threading.Thread(target=service.call, args=(lambda *, credential: credential,), daemon=True)
    thread.start()
    assert fetching.wait(20)

    def child():
        assert service.call(lambda *, credential: credential) == "token-0001"

    assert in_child(child) == 0
    go_on.set()
    thread.join()


def call_both_ways(service):
    """A call that succeeds and one that fails, as far as the circuit lets them."""
    for function, *args in ((len, "abc"), (fail,)):
        with suppress(ConnectionRefusedError, CircuitOpen):
            service.call(function, *args)


@contextmanager
def services_under_load(store, *, threads):
    """Two services, which threads call all the time."""
    services = [
        Service("bank", store=store, retry=Retry(attempts=2, base=0, cap=0), credentials=KeyPool(["k-1111", "k-2222"])),
        Service("rates", store=store, retry=Retry(attempts=1), breaker_per="endpoint"),
    ]
    over = threading.Event()

    def hammer(service):
        while not over.is_set():
            call_both_ways(service)

    working = [threading.Thread(target=hammer, args=(services[number % 2],)) for number in range(threads)]
    logging.disable()  # Python itself leaves the lock of a file that is written at the moment of a fork as it is
    for thread in working:
        thread.start()
    try:
        yield services
    finally:
        over.set()
        for thread in working:
            thread.join()
        logging.disable(logging.NOTSET)


def call_all(services):
    """Call each service 40 times; return how many calls each has counted."""
    counted = []
    for service in services:
        before = service.stats().calls
        for _ in range(20):
            call_both_ways(service)
        counted.append(service.stats().calls - before)
    return counted


@contextmanager
def opened(tmp_path, *, has_store):
    if not has_store:
        yield None
        return
    with redrive.connect(f"sqlite:///{tmp_path}/shared.db") as store:
        yield store


@pytest.mark.parametrize("has_store", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize(
    ("forks", "threads"), [(4, 4), pytest.param(200, 16, marks=pytest.mark.chaos)], ids=["short", "full"]
)
def test_children_forked_under_load_work(tmp_path, forks, threads, has_store):
    with opened(tmp_path, has_store=has_store) as store, services_under_load(store, threads=threads) as services:

        def child():
            assert call_all(services) == [40, 40]

        assert [in_child(child) for _ in range(forks)] == [0] * forks


inherited = []
"""Services that the workers of a pool have from their parent."""


def call_inherited(_):
    return call_all(inherited)


@pytest.mark.parametrize("has_store", [True, False], ids=["store", "no store"])
def test_workers_of_a_forked_pool_work(tmp_path, has_store):
    with opened(tmp_path, has_store=has_store) as store, services_under_load(store, threads=4) as services:
        inherited[:] = services
        try:
            with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
                assert pool.map_async(call_inherited, range(6), chunksize=1).get(60) == [[40, 40]] * 6
        finally:
            inherited.clear()
