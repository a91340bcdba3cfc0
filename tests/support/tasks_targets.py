"""A flow whose workers are killed, and half of whose tasks hang; see `tasks_flow` for the effects that tasks record."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time

import redrive
from tests.support.tasks_flow import RETRY, act, numbered

# A signal from outside is no cause that says anything about the task; but who can tell?
hunt = redrive.Flow("hunt", params=["book", "pace", "count"], workers=4)


@hunt.task(retry=RETRY)
def numbers(count):
    return list(range(count))


@hunt.task(each=numbers, retry=RETRY, poison=50, timeout=3, grace=0.3)
def prey(n, book, pace, idempotency_key):
    sys.stdout.write(f"prey {n} is here\n")
    return act(book, numbered(idempotency_key, n), pace, child=n % 25 == 7)


@hunt.task(after=prey, retry=RETRY, poison=50)
def bag(prey):
    return len(prey)


# ── tasks that hang ───────────────────────────────────────────────────────────────────────────────────────────────────


def spin():
    while True:
        pass


def ignore():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def backtrack():
    re.match(r"(a+)+$", "a" * 64 + "b")


def listen():
    here, there = socket.socketpair()
    here.recv(1)
    there.close()


def swallow():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def breed():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=False)


HANGS = (spin, ignore, backtrack, listen, swallow, breed, lambda: time.sleep(600))

stall = redrive.Flow("stall", params=["book", "pace", "count"], workers=6)


@stall.task
def halves(count):
    return list(range(count))


@stall.task(each=halves, retry=None, timeout=0.2, grace=0.1)
def hang(n, book, idempotency_key):
    HANGS[n % len(HANGS)]()
    return act(book, numbered(idempotency_key, n), 0.0)


@stall.task(each=halves, retry=RETRY, timeout=120)
def work(n, book, pace, idempotency_key):
    return act(book, numbered(idempotency_key, n), pace)


@stall.task(after=work)
def count_them(work):
    return len(work)


@stall.task(after=hang)
def not_reached():
    raise AssertionError("what it waits for never ends well")
