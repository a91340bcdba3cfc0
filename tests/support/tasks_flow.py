"""A flow of two hundred tasks that is killed again and again, and the book in which each of them notes what it does.

Workers import this module; it imports little. Every task has a file in the book: a line when it begins, and one with a
token when it has had its effect. The token is in its result: so it can be told whose effect the store believes in.
"""

import os
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path

import redrive

ORDERS, PAGES, STEPS, SIDES, NOTES, PAYMENTS = 55, 37, 12, 12, 8, 10
PAGE = 3_000  # characters: all pages together are too large for the store, and go by way of a file

RETRY = redrive.Retry(attempts=10, base=0.01, cap=0.05)
flow = redrive.Flow("fire", params={"book": "", "pace": 0.0}, workers=4)
flow.group("bank", concurrency=2)
common = {"retry": RETRY, "timeout": 120}


# ── behaviour of a task ───────────────────────────────────────────────────────────────────────────────────────────────

# What goes wrong at the first attempts of some tasks: things that heal, and one of which nobody can tell.
SCRIPTS = ((), (ConnectionError,), (), (TimeoutError, ConnectionError), (), (ValueError,), ())


def page_of(book, key):
    """The file of a task, known by its idempotency key."""
    return Path(book) / key.rpartition("/")[2]


def numbered(key, number):
    """The key of a child with the number of its item, by which people know it, instead of the item."""
    return f"{key.rpartition('[')[0]}[{number}]"


def note(path, line):
    """Add a line, whole or not at all; how many of its kind are there."""
    page = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        os.write(page, f"{line}\n".encode())
        os.lseek(page, 0, os.SEEK_SET)
        return sum(one.startswith(line.partition(" ")[0].encode()) for one in os.read(page, 1 << 20).splitlines())
    finally:
        os.close(page)


def act(book, key, pace, *, script=(), of=None, child=False):
    """Begin, fail as the script says, have an effect; the result, with what was had from others."""
    page = page_of(book, key)
    time_of = note(page, "began")
    time.sleep(random.uniform(0, pace))
    if time_of <= len(script):
        raise script[time_of - 1](f"{page.name} fails at attempt {time_of}")
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) if child else None
    token = uuid.uuid4().hex
    note(page, f"effect {token}")
    time.sleep(random.uniform(0, pace))
    if helper is not None:
        helper.kill()
        helper.wait()
    return {"token": token, "of": of or {}}


def token_of(result):
    return [one["token"] for one in result] if isinstance(result, list) else result["token"]


# ── the tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@flow.task(**common)
def begin(book, pace, idempotency_key):
    return act(book, idempotency_key, pace)


@flow.task(**common)
def orders():
    return list(range(ORDERS))


@flow.task(each=orders, **common)
def load(n, book, pace, idempotency_key):
    return {"n": n, **act(book, numbered(idempotency_key, n), pace, script=SCRIPTS[n % 7])}


@flow.task(each=load, **common)
def clean(loaded, book, pace, idempotency_key):
    of = {f"load[{loaded['n']}]": token_of(loaded)}
    key = numbered(idempotency_key, loaded["n"])
    return act(book, key, pace, script=SCRIPTS[(loaded["n"] + 3) % 7], of=of)


@flow.task(after=clean, **common)
def total(clean, book, pace, idempotency_key):
    return act(book, idempotency_key, pace, script=SCRIPTS[1], of={"clean": token_of(clean)})


@flow.task(after=begin, **common)
def catalogue():
    return [f"{n:04}".ljust(PAGE, "x") for n in range(PAGES)]


@flow.task(each=catalogue, **common)
def page(text, book, pace, idempotency_key):
    assert len(text) == PAGE
    return act(book, numbered(idempotency_key, int(text[:4])), pace, child=int(text[:4]) % 13 == 5)


@flow.task(after=begin, **common)
def nothing():
    return []


@flow.task(each=nothing, **common)
def never(item):
    raise AssertionError("there is no item")


def add_step(number):
    upstream = f"step-{number - 1}" if number else "begin"

    @flow.task(name=f"step-{number}", after=upstream, **common)
    def step(book, pace, idempotency_key):
        return act(book, idempotency_key, pace, script=SCRIPTS[number % 7])


def add_side(number):
    @flow.task(name=f"side_{number}", after=begin, **common)
    def side(begin, book, pace, idempotency_key):
        return act(book, idempotency_key, pace, of={"begin": token_of(begin)}, script=SCRIPTS[(number + 2) % 7])


def add_note(number):
    @flow.task(name=f"note_{number}", after=f"step-{number}", in_thread=True, retry=RETRY)
    def a_note(book, idempotency_key):
        return act(book, idempotency_key, 0.0, script=SCRIPTS[(number + 4) % 7])


def add_payment(number):
    @flow.task(name=f"pay_{number}", after=f"side_{number}", service="bank", **common)
    def pay(book, pace, idempotency_key):
        return act(book, idempotency_key, pace)


for _number in range(STEPS):
    add_step(_number)
for _number in range(SIDES):
    add_side(_number)
for _number in range(NOTES):
    add_note(_number)
for _number in range(PAYMENTS):
    add_payment(_number)


@flow.task(after=[f"side_{number}" for number in range(SIDES)], **common)
def merge(side_0, side_1, book, pace, idempotency_key):
    return act(book, idempotency_key, pace, of={"side_0": token_of(side_0), "side_1": token_of(side_1)})


# ── sensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@flow.sensor(every=0.03, timeout=3_600, after=begin, retry=RETRY)
def arrived(book, idempotency_key):
    return note(page_of(book, idempotency_key), "asked") >= 5 and act(book, idempotency_key, 0.0)


@flow.sensor(every=0.05, timeout=3_600, retry=RETRY)
def reached(book, idempotency_key):
    """What it waits for is what another task does."""
    page = page_of(book, idempotency_key)
    note(page, "asked")
    there = page.with_name("step-5")
    return there.exists() and "effect" in there.read_text() and act(book, idempotency_key, 0.0)


@flow.sensor(every=0.02, timeout=3_600, after=total, retry=RETRY, in_thread=True)
def closed(total, book, idempotency_key):
    asked = note(page_of(book, idempotency_key), "asked")
    if asked == 2:
        raise ConnectionError("nobody answers")
    return asked >= 4 and act(book, idempotency_key, 0.0, of={"total": token_of(total)})


@flow.task(
    after=[
        *(total, page, never, merge, arrived, reached, closed, f"step-{STEPS - 1}"),
        *(f"note_{number}" for number in range(NOTES)),
        *(f"pay_{number}" for number in range(PAYMENTS)),
    ],
    **common,
)
def end(total, page, closed, book, pace, idempotency_key):
    of = {"total": token_of(total), "page": token_of(page), "closed": token_of(closed)}
    return act(book, idempotency_key, pace, of=of)


def all_tasks():
    """The names of all tasks there must be at the end, as people write them."""
    fans = {"load": ORDERS, "clean": ORDERS, "page": PAGES}
    single = [name for name in flow.graph.nodes if name not in fans]
    return {*single, *(f"{name}[{number}]" for name, count in fans.items() for number in range(count))}
