"""Kill `redrive watch` and runs of pipelines and flows: no alert is lost, and none outlives its condition.

A message is sent twice only where a process was killed in between. The short form runs with the tests; `make chaos`
kills a hundred processes of each kind, and with `-s` prints where.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import redrive
from redrive.model.alerts import AlertStatus
from tests.support.alerts_worker import is_over
from tests.support.killable_workers import workers_of

KINDS = ("watch", "load", "flow")
SETTINGS = """
[store]
url = "{url}"
migrate = true

[alerts]
every = 0.1
persist = 0.2
storm = 1000000

[channels.hook]
webhook = "http://127.0.0.1:{port}/"

[routes]
P1 = "hook"
P2 = "hook"
P3 = "hook"
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with workers_of("alerts_worker", tmp_path_factory.mktemp("watch")) as made:
        yield made


class Hook:
    """A webhook that notes what arrives."""

    def __init__(self):
        self.documents = documents = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                documents.append(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


class Scene:
    """One process of each kind, replaced by another when it is killed."""

    def __init__(self, processes, url, directory, hook, seed):
        self.processes, self.url, self.directory, self.hook = processes, url, directory, hook
        self.chance = random.Random(seed)
        self.last_words = Counter()
        (directory / "redrive.toml").write_text(SETTINGS.format(url=url, port=hook.server.server_port))
        (directory / "redrive.toml").chmod(0o600)

    def start(self, kind, **options):
        return self.processes.start(kind, directory=str(self.directory), **options)

    def burn(self, kills):
        """Kill as many processes of each kind, in any order."""
        victims = [kind for kind in KINDS for _ in range(kills)]
        self.chance.shuffle(victims)
        crew = {kind: self.start(kind) for kind in KINDS}
        for kind in victims:
            worker = crew[kind]
            assert worker.listen(until=len(worker.said) + self.chance.randint(1, 25))
            time.sleep(self.chance.uniform(0, 0.005))
            self._kill(kind, worker)
            crew[kind] = self.start(kind)
        for kind, worker in crew.items():
            self._kill(kind, worker)

    def _kill(self, kind, worker):
        worker.kill()
        assert worker.join() == -9
        self.last_words[kind, worker.said[-1]["what"] if worker.said else "nothing"] += 1

    def settle(self):
        """Bring what was begun to its end, and let one watch look until nothing is left to do."""
        # One more than those that have failed: who was killed in the first run of a number has left it unfinished.
        begun = {kind: len(list(self.directory.glob(f"{kind}-*.failed"))) + 1 for kind in KINDS[1:]}
        watch = self.start("watch")
        for kind, count in begun.items():
            assert self.start(kind, most=count).join() == 0
        with redrive.connect(self.url) as store:
            ends = time.monotonic() + 60
            while store.alerts.unsent() or not self.is_settled(store, begun):
                assert time.monotonic() < ends, (store.alerts.unsent(), store.alerts.find(status="open"))
                time.sleep(0.05)
            os.kill(watch.pid, signal.SIGTERM)
            assert watch.join() == 0
            return begun, store.alerts.find(limit=100_000)

    def is_settled(self, store, begun):
        """Return whether every subject whose condition is over has no alert left that is not."""
        names = {alert.subject.name for alert in store.alerts.find(status="open", limit=100_000)}
        lasting = {
            f"{kind}-{number}" for kind, count in begun.items() for number in range(count) if not is_over(number)
        }
        return names == lasting


def check(scene, begun, alerts, kills):
    """Compare the store with what arrived; return how many messages came twice."""
    arrived = defaultdict(list)
    for document in scene.hook.documents:
        assert document["kind"] == "alert"
        arrived[document["alerts"][0]["id"]].append((document["what"], document["key"]))
    assert {alert.id for alert in alerts} >= set(arrived), "a message about an alert that is not there"
    twice = 0
    failed = defaultdict(list)
    for alert in alerts:
        if alert.status is AlertStatus.WAITING:  # a lost run, which has ten minutes to recover: nobody was notified
            assert alert.id not in arrived
            continue
        messages = arrived[alert.id]
        assert {key for _, key in messages} == {alert.key}, "one key for all messages of an alert"
        story = list(dict.fromkeys(what for what, _ in messages))
        if alert.condition == "recovered":
            assert story == ["opened"]
        else:
            failed[alert.subject.name].append(alert)
            wanted = ["opened", "resolved"] if alert.status is AlertStatus.RESOLVED else ["opened"]
            assert [what for what in story if what != "escalated"] == wanted, (alert, messages)
        twice += len(messages) - len(story)
    for kind, count in begun.items():
        for number in range(count):
            found = failed.pop(f"{kind}-{number}")
            assert len(found) == 1, [
                (one.key, one.condition, one.since, one.opened_at, one.resolved_at) for one in found
            ]
            assert found[0].is_over == is_over(number)
    assert not failed
    assert twice <= kills, "each killed process has at most one message in hand"
    return twice


def under_fire(processes, url, directory, kills, seed):
    with Hook() as hook:
        scene = Scene(processes, url, directory, hook, seed)
        scene.burn(kills)
        begun, alerts = scene.settle()
        twice = check(scene, begun, alerts, kills=(kills + 1) * len(KINDS))
    where = ", ".join(f"{kind} after {words!r} {count}" for (kind, words), count in scene.last_words.most_common())
    sys.stdout.write(
        f"\n{url.partition(':')[0]}: {kills} kills of each of {', '.join(KINDS)}; {begun} begun, {len(alerts)} alerts, "
        f"{len(hook.documents)} messages, {twice} of them twice; {where}\n"
    )
    return scene, begun


def test_no_alert_is_lost_when_runs_and_watch_are_killed(processes, new_store, tmp_path):
    with new_store("sqlite") as url:
        under_fire(processes, url, tmp_path, kills=2, seed=3)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_alert_is_lost_when_hundreds_are_killed(processes, new_store, tmp_path, kind):
    with new_store(kind) as url:
        scene, begun = under_fire(processes, url, tmp_path, kills=100, seed=4)
    assert min(begun.values()) >= 10
    assert len(scene.last_words) >= 15
