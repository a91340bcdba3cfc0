"""Messages when a program ends or forks: due messages are sent first, and none is sent twice."""

import os
import subprocess

import pytest

import redrive
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.lifecycle.repository import AlertRepository
from tests.support.alerts import Recorder, settings
from tests.support.warm_python import warm_python

pytestmark = pytest.mark.process

LONG = 60.0  # seconds: longer than anything takes


@pytest.fixture
def url(new_store):
    with new_store("sqlite") as url:
        yield url


@pytest.fixture
def store(url):
    with redrive.connect(url) as store:
        yield store


PROGRAM = """
import os, sys, threading, time, redrive
sys.path.insert(0, {root!r})
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.alerts.delivery.sender import Sender
from tests.support.alerts import finding, judgement, many, settings

chosen = settings("slack", exit_wait={exit_wait})
store = redrive.connect(sys.argv[1])
ledger = AlertRepository(store.database, chosen)
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def deliver(channel, message):
    {deliver}
    os.write(log, (message.key + chr(10)).encode())

sender = Sender(store.database, chosen, deliver=deliver)
ledger.apply(judgement(*many(3)))
{work}
"""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))


@pytest.fixture
def run(url, tmp_path):
    def run(work, *, deliver="pass", exit_wait=LONG, expect=0):
        program = PROGRAM.format(root=ROOT, work=work, deliver=deliver, exit_wait=exit_wait)
        log = tmp_path / "delivered"
        command = warm_python("-W", "error", "-c", program, url, log)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * LONG)
        assert done.returncode == expect, done.stderr
        return sorted(log.read_text().split()), done.stderr

    return run


def test_ending_program_sends_due_messages_first(run, store):
    said, errors = run("sender.wake()")
    assert said == ["slot:0", "slot:1", "slot:2"]
    assert errors == ""
    assert AlertRepository(store.database, AlertSettings()).unsent() == []


SEVERAL = """
senders = [Sender(store.database, chosen, deliver=deliver) for _ in range(3)]
senders[0].wake()
senders[0].close()
ledger.apply(judgement(*many(3, start=3)))
for one in senders:
    one.wake()
del one, senders, sender
"""


def test_program_without_references_to_stores_sends_messages(run):
    said, errors = run(SEVERAL)
    assert said == [f"slot:{number}" for number in range(6)]
    assert errors == ""


def test_failing_program_sends_due_messages(run):
    said, errors = run("sender.wake(); raise SystemExit(3)", expect=3)
    assert said == ["slot:0", "slot:1", "slot:2"]
    assert errors == ""


def test_program_leaves_messages_of_hanging_channel_to_the_next(run, store):
    said, _ = run("sender.wake()", deliver="time.sleep(1_000)", exit_wait=0.1)
    assert said == []
    recorder = Recorder()
    later = Sender(store.database, settings("slack"), deliver=recorder)
    assert later.send_due() == 3


FORKS = """
begun, go = threading.Event(), os.pipe()
def deliver(channel, message):
    begun.set()
    os.read(go[0], 1)
    os.write(log, (message.key + chr(10)).encode())
sender._deliver = deliver
sender._reset()
sender.wake()
assert begun.wait(60)
child = os.fork()
if child == 0:
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
    sender.wake()
    sender.close()
    sys.exit(0)
os.write(go[1], b"123")
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
"""


def test_forked_child_has_no_sender_thread_and_sends_nothing(run):
    said, _ = run(FORKS)
    assert said == ["slot:0", "slot:1", "slot:2"]
