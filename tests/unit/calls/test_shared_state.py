"""Services that share their state, over a board in memory; the store's own is tested with the stores."""

import gc
import logging
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import redrive
from redrive import Breaker, CircuitOpen, KeyPool, QuotaExhausted, Retry, Service, Token
from redrive.calls import shared_state
from redrive.model.calls import BreakerChanged, KeyCooled
from redrive.policy.consensus import BreakerReport, DrainedKey, ReportKind, Reports

ONCE = Retry(attempts=1)
BREAKER = Breaker(failures=1, probes=1)


class Board:
    """The reports of all processes of a test. `seen_from(node)` is the store of one of them."""

    def __init__(self):
        self.reports, self.drained, self.asked, self.told = {}, {}, 0, []
        self.broken, self.refused, self.open_for_business = False, 0, threading.Event()
        self.open_for_business.set()
        self.views = []

    def seen_from(self, node="here", every=0.01):
        self.views.append(View(self, node, every))
        return self.views[-1]

    def say(self, kind, host="*", process="0", retry_in=0.0, service="bank"):
        word = BreakerReport(service, host, process, ReportKind(kind), 0.0, retry_in)
        self.reports[service, host, process] = (word, time.monotonic())


class View:
    """As a store: it has `shared`. And as what is shared."""

    def __init__(self, board, node, every):
        self.board, self.name, self.node, self.every = board, "the board", node, every
        self.shared = self
        self.stop = lambda: None

    def read(self, services, *, keys):
        self._serve()
        self.board.asked += 1
        now = time.monotonic()
        reports = [
            replace(word, ago=word.ago + now - at, retry_in=max(0.0, word.retry_in - (now - at)))
            for word, at in self.board.reports.values()
            if word.service in services
        ]
        return Reports(reports, [key for key in self.board.drained.values() if keys and key.service in services])

    def publish(self, reports, drained):
        self._serve()
        self.board.told += [*reports, *drained]
        for word in reports:
            self.board.reports[word.service, word.host, word.process] = (word, time.monotonic())
        for key in drained:
            self.board.drained[key.service, key.digest] = key

    def on_close(self, stop):
        self.stop = stop

    def _serve(self):
        assert self.board.open_for_business.wait(300)
        if self.board.broken:
            self.board.refused += 1
            raise ConnectionRefusedError("no such board")


@pytest.fixture
def board():
    board = Board()
    yield board
    board.open_for_business.set()
    for view in board.views:
        view.stop()
    eventually(lambda: not carriers())


def carriers():
    return [thread for thread in threading.enumerate() if thread.name == "redrive-sharing"]


def eventually(condition):
    for _ in range(2_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


def after_another_look(board):
    """Wait until the board was read twice more: earlier reports have been read by then."""
    before = board.asked
    eventually(lambda: board.asked >= before + 2)


def bank(view, **options):
    return Service("bank", store=view, **{"retry": ONCE, "breaker": BREAKER, **options})


def trip(service):
    with pytest.raises(TimeoutError):
        service.call(fail)


def fail():
    raise TimeoutError


def answer(credential=""):
    return credential or "fine"


# ── circuits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_22_circuit_of_one_process_opens_in_all_of_the_machine(board):
    one, other = bank(board.seen_from()), bank(board.seen_from())
    trip(one)
    eventually(lambda: other.circuit == "open")
    with pytest.raises(CircuitOpen) as refused:
        other.call(answer)
    assert 0 < refused.value.retry_in <= 36


def test_22_other_machines_open_when_two_report_it(board):
    first, second, third = (bank(board.seen_from(node)) for node in ("a", "b", "c"))
    trip(first)
    eventually(lambda: len(board.told) == 1)
    after_another_look(board)
    assert third.call(answer) == "fine"
    trip(second)
    eventually(lambda: third.circuit == "open")


def test_22_other_machines_open_at_one_with_a_quorum_of_one(board):
    one, other = bank(board.seen_from("a")), bank(board.seen_from("b"), breaker=Breaker(quorum=1))
    trip(one)
    eventually(lambda: other.circuit == "open")


def test_opening_already_reported_by_its_machine_is_not_written(board):
    service = bank(board.seen_from(every=600))
    board.say("open", "here", "another", retry_in=30)
    trip(service)
    asked, ring = board.asked, service.core.circuit.on_change
    eventually(lambda: ring() or board.asked >= asked + 2)
    assert board.told == []


def test_service_ignores_its_own_reports(board):
    service = bank(board.seen_from())
    trip(service)
    eventually(lambda: board.told)
    service.reset()
    eventually(lambda: len(board.told) == 2)
    board.say("open", "here", board.told[0].process, retry_in=30)
    after_another_look(board)
    assert service.circuit == "closed"


def test_two_services_of_one_name_in_a_process_share_reports(board):
    view = board.seen_from()
    one, other = bank(view), bank(view)
    trip(one)
    eventually(lambda: other.circuit == "open")
    assert len(carriers()) == 1


def test_service_started_during_an_outage_knows_it_at_once(board):
    trip(bank(board.seen_from()))
    eventually(lambda: board.told)
    late = bank(board.seen_from())
    with pytest.raises(CircuitOpen):
        late.call(answer)


def test_shared_opening_emits_an_event_and_is_not_forwarded(board):
    seen = []
    one, other = bank(board.seen_from()), bank(board.seen_from(), on_event=seen.append)
    trip(one)
    eventually(lambda: other.circuit == "open")
    after_another_look(board)
    assert [(event.before, event.after) for event in seen if isinstance(event, BreakerChanged)] == [("closed", "open")]
    assert [word.kind for word in board.told] == ["open"]


def test_call_in_flight_at_a_shared_opening_is_void(board):
    other = bank(board.seen_from(), breaker=Breaker(failures=1, probes=1, cooldown=0.05, jitter=0))

    def straggler():
        board.say("open", "here", retry_in=30)
        eventually(lambda: other.circuit == "open")
        raise TimeoutError

    with pytest.raises(TimeoutError):
        other.call(straggler)
    after_another_look(board)
    assert [word for word in board.told if isinstance(word, BreakerReport)] == []


@pytest.mark.parametrize("by_word", [True, False])
def test_other_processes_probe_soon_after_one_success(board, clock, by_word):
    at_once = Breaker(failures=1, jitter=0, probes=1)
    one, other = bank(board.seen_from(), clock=clock), bank(board.seen_from(), breaker=at_once)
    trip(one if by_word else other)
    eventually(lambda: one.circuit == other.circuit == "open")
    clock.advance(40)
    assert one.call(answer) == "fine"
    assert one.circuit == "closed"
    eventually(lambda: _try(other))
    assert other.circuit == "closed"


def _try(service):
    try:
        return service.call(answer) == "fine"
    except CircuitOpen:
        return False


def test_reset_in_one_process_lets_the_others_probe(board):
    one, other = bank(board.seen_from()), bank(board.seen_from(), breaker=Breaker(jitter=0, probes=1))
    trip(one)
    eventually(lambda: other.circuit == "open")
    one.reset()
    eventually(lambda: _try(other))


def test_reset_by_an_operator_closes_every_process(board):
    services = [bank(board.seen_from(node)) for node in ("a", "b", "c")]
    for service in services:
        trip(service)
    eventually(lambda: len(board.told) == 3)
    board.reports.clear()
    board.say("reset")
    eventually(lambda: {service.circuit for service in services} == {"closed"})
    after_another_look(board)
    assert len(board.told) == 3


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

KEYS = ("key-one-1111", "key-two-2222")


def keyed(view, *keys, **options):
    return bank(view, credentials=KeyPool(keys or KEYS, resets=3600), classifier=QUOTA, **options)


class UsedUp(Exception):
    """The key's quota is gone."""


QUOTA = redrive.Classifier().rule(UsedUp, kind="quota")


def drain(service, *used):
    def call(*, credential):
        if credential in used:
            raise UsedUp
        return credential

    return service.call(call)


def test_key_exhausted_in_one_process_is_unused_in_others(board):
    seen = []
    one, other = keyed(board.seen_from("a")), keyed(board.seen_from("b"), on_event=seen.append)
    assert drain(one, KEYS[0]) == KEYS[1]
    eventually(lambda: other.call(answer) == KEYS[1])
    eventually(lambda: [event.key_id for event in seen if isinstance(event, KeyCooled)] == ["1111"])
    after_another_look(board)
    assert len(board.told) == 1


def test_shared_exhausted_key_outlasts_successes_and_restarts(board):
    drain(keyed(board.seen_from()), KEYS[0])
    eventually(lambda: board.drained)
    late = keyed(board.seen_from())
    assert [late.call(answer) for _ in range(3)] == [KEYS[1]] * 3
    with pytest.raises(QuotaExhausted):
        drain(keyed(board.seen_from(), KEYS[0]), KEYS[0])


def test_expired_exhaustion_of_a_key_is_not_shared(board):
    name = keyed(board.seen_from()).core.credentials.names()[0]
    over = datetime.now(UTC) - timedelta(seconds=1)
    board.drained["bank", name.digest] = DrainedKey("bank", name.digest, name.key_id, over)
    seen = []
    assert keyed(board.seen_from(), on_event=seen.append).call(answer) == KEYS[0]
    assert not any(isinstance(event, KeyCooled) for event in seen)


def test_exhausted_keys_are_used_again_after_a_reset_of_keys(board):
    one, other = keyed(board.seen_from()), keyed(board.seen_from())
    drain(one, KEYS[0])
    eventually(lambda: other.call(answer) == KEYS[1])
    board.drained.clear()
    board.say("reset_keys")
    eventually(lambda: one.call(answer) == KEYS[0])
    eventually(lambda: other.call(answer) == KEYS[0])


def test_reset_keys_are_no_longer_shared_as_exhausted(board):
    service = keyed(board.seen_from())
    board.broken = True
    drain(service, KEYS[0])
    eventually(lambda: board.refused)
    board.say("reset_keys")
    board.broken = False
    after_another_look(board)
    assert service.call(answer) == KEYS[0]
    assert board.told == []


def test_shared_key_is_a_digest_specific_to_the_service(board):
    drain(keyed(board.seen_from()), *KEYS[:1])
    view = board.seen_from()
    other = Service("exchange", store=view, retry=ONCE, classifier=QUOTA, credentials=KeyPool(KEYS))
    drain(other, *KEYS[:1])
    eventually(lambda: len(board.drained) == 2)
    assert len({key.digest for key in board.drained.values()}) == 2
    assert {key.key_id for key in board.drained.values()} == {"1111"}
    assert "key-one" not in repr(board.told)


def test_key_of_four_characters_is_not_shown_at_all(board):
    drain(keyed(board.seen_from(), "k111", "k222"), "k111")
    eventually(lambda: board.drained)
    assert "k111" not in repr(board.told)


def test_tokens_are_identified_by_position(board):
    accounts = [Token(lambda: "north"), Token(lambda: "south")]
    assert drain(keyed(board.seen_from(), *accounts), "north") == "south"
    eventually(lambda: board.drained)
    assert keyed(board.seen_from(), *accounts).call(answer) == "south"
    assert [key.digest for key in board.drained.values()] == ["token 1"]


def test_pause_of_a_key_is_not_shared(board):
    service = keyed(board.seen_from(), retry=Retry(attempts=2), breaker=Breaker(failures=2))

    def limited(*, credential):
        raise redrive.RateLimited(retry_after=0.01)

    with pytest.raises(redrive.RateLimited):
        service.call(limited)
    after_another_look(board)
    assert board.told == []


# ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_successful_call_reads_and_writes_nothing(board):
    service = keyed(board.seen_from(every=600))
    asked = board.asked
    for _ in range(1_000):
        service.call(answer)
    assert board.asked == asked
    assert board.told == []


def test_failing_call_does_not_wait_for_the_store(board):
    service = bank(board.seen_from())
    board.open_for_business.clear()
    trip(service)  # returns although no report can be written
    with pytest.raises(CircuitOpen):
        service.call(answer)
    assert board.told == []
    board.open_for_business.set()
    eventually(lambda: board.told)


def test_lost_store_is_logged_once_and_reports_are_buffered(board, caplog):
    caplog.set_level(logging.WARNING, "redrive.events")
    service = keyed(board.seen_from())
    board.broken = True
    eventually(lambda: "lost" in caplog.text)
    assert drain(service, KEYS[0]) == KEYS[1]
    trip(service)
    assert service.circuit == "open"
    eventually(lambda: board.refused >= 3)
    board.broken = False
    eventually(lambda: len(board.told) == 2)
    eventually(lambda: "back" in caplog.text)
    about = [record.getMessage() for record in caplog.records if "the board" in record.getMessage()]
    assert about == [
        "the board is lost: services use their own evidence only (ConnectionRefusedError: no such board)",
        "the board is back: services share circuits and keys again",
    ]


def test_slow_store_delays_a_new_service_for_a_bounded_time(board, caplog, monkeypatch):
    monkeypatch.setattr(shared_state, "FIRST_READ_TIMEOUT", 0.05)
    monkeypatch.setattr(shared_state, "STOP_TIMEOUT", 0.05)
    board.open_for_business.clear()
    service = bank(board.seen_from())
    assert service.call(answer) == "fine"
    assert "the board has not answered for 0.05 s" in caplog.text


def test_unreachable_store_does_not_prevent_a_service(board, caplog):
    board.broken = True
    service = bank(board.seen_from())
    assert service.call(answer) == "fine"
    assert caplog.text.count("the board is lost") == 1


def test_further_services_do_not_wait_for_a_lost_store(board, monkeypatch):
    board.broken = True
    view = board.seen_from()
    bank(view)
    monkeypatch.setattr(shared_state, "FIRST_READ_TIMEOUT", 600)
    board.open_for_business.clear()
    assert bank(view).call(answer) == "fine"


def test_reports_are_written_before_the_store_is_closed(board):
    view = board.seen_from(every=600)
    service = keyed(view)
    drain(service, KEYS[0])
    trip(service)
    view.stop()
    assert len(board.told) == 2
    assert carriers() == []


def test_service_of_a_closed_store_continues_alone(board):
    view = board.seen_from()
    alone = bank(view)
    view.stop()
    trip(alone)
    assert alone.circuit == "open"
    again = bank(view)
    trip(again)
    eventually(lambda: len(board.told) == 1)


def test_service_does_not_keep_a_closed_store_alive(board):
    service = bank(board.seen_from())
    gone = weakref.ref(board.views[0])
    board.views.pop().stop()
    gc.collect()
    assert gone() is None
    assert service.call(answer) == "fine"


def test_thread_ends_with_the_last_service_after_its_reports(board):
    service = keyed(board.seen_from())
    board.open_for_business.clear()
    drain(service, KEYS[0])
    del service
    gc.collect()
    board.open_for_business.set()
    eventually(lambda: board.drained)
    gc.collect()
    eventually(lambda: not carriers())


def test_service_with_nothing_to_share_starts_no_thread(board):
    bank(board.seen_from(), breaker=None)
    assert carriers() == []


@pytest.mark.process
def test_no_thread_and_no_import_without_a_store():
    program = (
        "import sys, threading, redrive\n"
        "redrive.Service('bank', credentials=redrive.KeyPool(['key-1111'])).call(lambda: 1)\n"
        "print(threading.active_count(), 'redrive.calls.shared_state' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_invalid_store_is_rejected():
    with pytest.raises(TypeError, match=r"store must be what redrive\.connect"):
        Service("bank", store="sqlite:///x.db")
