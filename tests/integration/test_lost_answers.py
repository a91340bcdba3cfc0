"""The connection breaks when PostgreSQL has committed and not yet said so: the store repeats, nothing is doubled."""

import contextlib
import gc
import select
import socket
import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy.engine import make_url

import redrive
from redrive.calls.metrics import publisher
from redrive.dlq import retention

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"  # as the client sends it

# SQLAlchemy does not close the cursor of a connection that broke, and the driver complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def collected():
    """See that a broken cursor is collected here, where nobody minds."""
    yield
    gc.collect()


class Censor:
    """Stands between the store and its server; keeps the answer to a COMMIT back, and breaks the connection."""

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._left = None
        self.struck = False
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def strike(self, *, after):
        """Withhold an answer, when so many more have passed."""
        self._left, self.struck = after, False

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()

    def _accept(self):
        carrying = []
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                carrying.append(threading.Thread(target=self._carry, args=(client,)))
                carrying[-1].start()
        for thread in carrying:
            thread.join()

    def _carry(self, client):
        with client, socket.create_connection(("127.0.0.1", self._server)) as server, contextlib.suppress(OSError):
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    (server if end is client else client).sendall(data)
                    if end is client and COMMIT in data and self._is_the_one():
                        server.recv(1 << 16)
                        self.struck = True
                        return

    def _is_the_one(self):
        if self._left is None:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self._left = None
        return True


@pytest.fixture
def censored(new_store):
    with new_store("postgresql") as url:
        there = make_url(url)
        censor = Censor(there.port)
        with redrive.connect(there.set(port=censor.port).render_as_string(hide_password=False)) as store:
            yield store, censor
        censor.close()


@pytest.fixture
def censor(censored):
    store, censor = censored
    return store.dlq, censor


def letters(count):
    return (redrive.NewLetter({"id": n}, "fee: not a number", key=f"D-{n}") for n in range(count))


def test_letters_are_put_once_and_at_most_seen_once_more(censor):
    dlq, answers = censor
    answers.strike(after=0)
    assert dlq.put_many(letters(20), pipeline="vendor").total == 20
    assert answers.struck
    assert sorted(letter.key for letter in dlq.each()) == sorted(f"D-{n}" for n in range(20))
    # Whether it was committed, nobody said: the repetition counts as another sighting.
    assert {letter.seen for letter in dlq.each()} == {2}
    assert (dlq.causes()[0].count, dlq.causes()[0].seen) == (20, 40)


# A replay of two batches commits a look, then for each batch the claim and the marks, then the release.
@pytest.mark.parametrize(
    "after",
    [
        0,
        1,
        2,
        3,
        4,
        5,
    ],
)
def test_a_replay_sends_and_marks_each_letter_once(censor, after):
    dlq, answers = censor
    dlq.put_many(letters(20), pipeline="vendor")
    sent = []

    def target(records):
        sent.extend(record["id"] for record in records)
        return [None if record["id"] % 5 else "no" for record in records]

    answers.strike(after=after)
    report = dlq.replay(target, any_pipeline=True, dry_run=False, batch=10, lease=2)
    assert answers.struck
    assert sorted(sent) == list(range(20))
    assert (report.attempted, report.reprocessed, report.failed_again, report.held) == (20, 16, 4, 0)
    assert (dlq.count(status="reprocessed"), dlq.count(status="escalated"), dlq.count(reprocess_count=1)) == (16, 4, 20)
    assert all(len(dlq.audit(letter.id)) == 1 for letter in dlq.each())


def test_letters_are_discarded_once_and_the_log_says_so_once(censor):
    dlq, answers = censor
    dlq.put_many(letters(20), pipeline="vendor")
    answers.strike(after=1)  # the first is that of a look
    dlq.discard(pipeline="vendor", note="too old")
    assert answers.struck
    assert dlq.count(status="discarded") == 20
    assert all(len(dlq.audit(letter.id)) == 1 for letter in dlq.each())


def test_a_purge_goes_on_to_its_end(censor, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 10)
    dlq, answers = censor
    dlq.put_many(letters(30), pipeline="vendor")
    dlq.discard(pipeline="vendor", note="too old")
    answers.strike(after=1)
    dlq.purge(older_than="0s")
    assert answers.struck
    assert (dlq.count(), dlq.size().letters, dlq.causes()) == (0, 0, [])


# Without a circuit or keys to share, the only commits are those of rollups.
@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_services_did_is_counted_once(censored, after):
    store, answers = censored
    store.services.every = 600
    bank = redrive.Service("bank", store=store, breaker=None)
    answers.strike(after=after)
    for _ in range(4):
        for _ in range(25):
            bank.call(len, "fine")
        publisher.flush()
    assert answers.struck
    (one,) = store.services.totals()
    assert (one.calls, one.attempts, sum(one.latencies)) == (100, 100, 100)
    assert sum(minute.attempts for minute in store.services.minutes("bank", one.at)) == 100


def test_a_purge_of_what_services_did_keeps_what_it_comes_to(censored):
    store, answers = censored
    store.services.every = 600
    redrive.Service("bank", store=store, breaker=None).call(len, "fine")
    publisher.flush()
    before = store.services.totals()
    answers.strike(after=1)  # the first is that of a look
    store.services.purge(datetime.now(UTC))
    assert answers.struck
    assert (store.services.windows(), store.services.totals()) == ([], before)
