"""Kill processes that open alerts and send messages, and their database: no alert is lost or opened twice.

Every message is delivered in order, and exactly once where no process was killed. A sender that is killed between a
delivery and its mark sends that message twice; no other message is doubled. The short form runs with the tests;
`make chaos` runs the full count, and with `-s` prints where the kills hit.
"""

import os
import random
import select
import sys
import time
from collections import Counter, defaultdict

import psycopg
import pytest

import redrive
from redrive.alerts.delivery.sender import Sender
from redrive.alerts.lifecycle.repository import AlertRepository
from redrive.model.alerts import AlertStatus, SendStatus, What
from tests.support.alerts_worker import CHANNELS, SETTINGS, is_over
from tests.support.killable_workers import workers_of


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with workers_of("alerts_worker", tmp_path_factory.mktemp("alerts")) as made:
        yield made


class Books:
    """Compare the store with the delivered messages."""

    def __init__(self, url, directory):
        self.url, self.deliveries, self.stop = url, directory / "deliveries", directory / "stop"
        self.deliveries.touch()
        self.killed = {}

    def job(self, operation, **options):
        until = {"until": str(self.stop)} if operation == "send" else {}
        return {"operation": operation, "url": self.url, "deliveries": str(self.deliveries), **until, **options}

    def lines(self):
        return [line.split() for line in self.deliveries.read_text().splitlines()]

    def bury(self, worker):
        """Note how many messages a killed process has marked."""
        self.killed[worker.pid] = len(worker.heard("marked"))

    def send_the_rest(self):
        """Release the claims of killed processes, so that no test waits for their expiry."""
        with redrive.connect(self.url) as store, self.deliveries.open("ab", buffering=0) as log:

            def deliver(channel, message):
                log.write(f"{os.getpid()} {channel.name} {message.what} {message.key}\n".encode())

            Sender(store.database, SETTINGS, deliver=deliver).send_due()

    def check(self):
        """How many alerts there are, and how many messages came twice."""
        with redrive.connect(self.url) as store:
            ledger = AlertRepository(store.database, SETTINGS)
            alerts = ledger.find(limit=100_000)
            sends = {alert.key: ledger.sends(alert.id) for alert in alerts}
            assert ledger.unsent() == []
        assert len({alert.key for alert in alerts}) == len(alerts), "an alert was opened twice"
        said, by = defaultdict(list), defaultdict(list)
        for pid, channel, what, key in self.lines():
            said[key, channel].append(what)
            by[key, channel, what].append(int(pid))
        for number, alert in enumerate(reversed(alerts)):
            assert alert.key == f"run:{number}", "an alert was lost"
            story = [What.OPENED, What.RESOLVED] if alert.is_over else [What.OPENED]
            for channel in CHANNELS:
                of_channel = [send for send in sends[alert.key] if send.channel == channel]
                assert [send.what for send in of_channel] == story
                assert all(send.status is SendStatus.SENT for send in of_channel)
                heard = said.pop((alert.key, channel))
                assert list(dict.fromkeys(heard)) == story
        assert not said, "something was said of an alert that is not there"
        # What came again had been sent by somebody who was killed before he could say so.
        unheard = Counter(pid for pids in by.values() for pid in pids[:-1])
        sent = Counter(int(pid) for pid, *_ in self.lines())
        for pid, count in unheard.items():
            assert count <= sent[pid] - self.killed[pid] <= len(CHANNELS)
        return alerts, unheard.total()


def hear_out(worker):
    """Read the output of a process, so that it never blocks on a full pipe."""
    while select.select([worker._pipe], [], [], 0)[0] and worker.listen(until=len(worker.said) + 1):
        pass


class Fire:
    """One process that opens alerts and two that send, each replaced by another when it is killed."""

    def __init__(self, processes, books, seed):
        self.processes, self.books = processes, books
        self.chance = random.Random(seed)
        self.last_words = Counter()

    def burn(self, kills):
        crew = [self.start(role) for role in ("judge", "send", "send")]
        for _ in range(kills):
            for _, worker in crew:
                hear_out(worker)
            place = self.chance.randrange(len(crew))
            role, worker = crew[place]
            assert worker.listen(until=len(worker.said) + self.chance.randint(1, 12))
            time.sleep(self.chance.uniform(0, 0.004))
            worker.kill()
            assert worker.join() == -9
            self.last_words[worker.said[-1]["what"]] += 1
            self.books.bury(worker)
            crew[place] = self.start(role)
        crew[0][1].kill()  # who opens alerts would never end
        crew[0][1].join()
        self.books.bury(crew[0][1])
        self.books.stop.touch()
        for _, worker in crew[1:]:
            assert worker.join() == 0

    def start(self, role):
        return role, self.processes.start(**self.books.job(role))


@pytest.fixture
def books(new_store, tmp_path, request):
    with new_store(request.param) as url:
        yield Books(url, tmp_path)


databases = pytest.mark.parametrize("books", ["sqlite", "postgresql"], indirect=True)


def under_fire(processes, books, kills, seed):
    fire = Fire(processes, books, seed)
    fire.burn(kills)
    books.send_the_rest()
    alerts, twice = books.check()
    where = ", ".join(f"after {words!r} {count}" for words, count in fire.last_words.most_common())
    kind = books.url.partition(":")[0]
    sys.stdout.write(
        f"\nalerts on {kind}: {kills} kills, {len(alerts)} alerts, {len(books.lines())} messages, "
        f"{twice} of them twice; {where}\n"
    )
    return fire, alerts


# ── exactly where ─────────────────────────────────────────────────────────────────────────────────────────────────────


@databases
@pytest.mark.parametrize(
    "moment", ["storing", "stored", "ended", "claiming", "claimed", "delivered", "marking", "marked"]
)
def test_sender_takes_over_messages_of_killed_process(processes, books, moment):
    worker = processes.start(**books.job("judge", most=6, die_at=[moment, 2]))
    assert worker.join() == -9
    books.bury(worker)
    assert processes.start(**books.job("judge", most=6)).join() == 0
    books.send_the_rest()
    alerts, _ = books.check()
    assert len(alerts) == 6


@databases
def test_sender_killed_before_mark_sends_twice(processes, books):
    worker = processes.start(**books.job("judge", most=1, die_at=["delivered", 1]))
    assert worker.join() == -9
    books.send_the_rest()
    said = Counter((channel, what) for _, channel, what, _ in books.lines())
    assert set(said) == {(channel, "opened") for channel in CHANNELS}
    assert 3 <= sum(said.values()) <= 4  # both may have been on their way


@databases
def test_senders_without_kills_send_each_message_once(processes, books):
    senders = [processes.start(**books.job("send")) for _ in range(2)]
    assert processes.start(**books.job("judge", most=25)).join() == 0
    books.stop.touch()
    assert [sender.join() for sender in senders] == [0, 0]
    alerts, twice = books.check()
    assert len(alerts) == 25
    assert twice == 0
    assert Counter(alert.is_over for alert in alerts) == Counter(is_over(number) for number in range(25))


# ── anywhere ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@databases
def test_no_alert_is_lost_when_a_few_processes_are_killed(processes, books):
    _, alerts = under_fire(processes, books, kills=6, seed=1)
    assert any(alert.status is AlertStatus.RESOLVED for alert in alerts)


@pytest.mark.chaos
@databases
def test_no_alert_is_lost_when_a_hundred_processes_are_killed(processes, books):
    fire, alerts = under_fire(processes, books, kills=100, seed=2)
    assert len(alerts) >= 25
    assert len(fire.last_words) >= 6


# ── and its database ──────────────────────────────────────────────────────────────────────────────────────────────────


def restarted(processes, server, directory, times):
    """Stop and kill PostgreSQL in turns while three processes work; none of them is killed."""
    with redrive.connect(server.url, migrate=True):
        pass
    books = Books(server.url, directory)
    senders = [processes.start(**books.job("send")) for _ in range(2)]
    judge = processes.start(**books.job("judge", most=12 * times))
    for number in range(times):
        if not judge.listen(until=len(judge.said) + 10):
            break
        (server.kill if number % 2 else server.stop)()
        server.start()
    assert judge.join() == 0
    books.stop.touch()
    assert [sender.join() for sender in senders] == [0, 0]
    alerts, twice = books.check()
    assert len(alerts) == 12 * times
    assert twice == 0
    sys.stdout.write(f"\n{times} restarts: {len(alerts)} alerts, {len(books.lines())} messages, each once\n")


def test_postgres_restarts_lose_and_double_no_alert(processes, mortal_postgres, tmp_path):
    restarted(processes, mortal_postgres, tmp_path, times=2)


@pytest.mark.chaos
def test_many_postgres_restarts_lose_and_double_no_alert(processes, mortal_postgres, tmp_path):
    with psycopg.connect(mortal_postgres.url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS pipeline CASCADE")
    restarted(processes, mortal_postgres, tmp_path, times=10)
