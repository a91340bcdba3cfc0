"""Services in forked children: no lock that a thread of the parent held is waited for."""

import os
import signal
import threading

import pytest

from redrive import KeyPool, Retry, Service, Token
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
    stuck(service._core.circuit.admit)

    def child():
        assert service.call(len, "abc") == 3
        with pytest.raises(ConnectionRefusedError):
            service.call(fail)
        assert service.stats().calls == 2

    assert in_child(child) == 0


def test_tally_lock_of_the_parent_does_not_stop_the_child(stuck):
    service = Service("s", clock=stuck.clock, retry=Retry(attempts=1))
    service.call(len, "abc")
    stuck(service._core.circuit.admit)
    counting = threading.Thread(target=service.stats, daemon=True)
    counting.start()  # holds its lock while it waits for the circuit's
    while not service._core.tally._folding:
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
    stuck(service._core.credentials.pick)

    def child():
        service._core.credentials.refused(0)
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
