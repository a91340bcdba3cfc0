"""The processes of a killable call: a fork server with a single worker, which makes the call and sends the answer.

A killed process cannot report whether it has sent a POST. A thread reports requests shortly before the timeout, so that
the calling service knows that the call must not be retried.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, NoReturn

from redrive.calls.effects.in_flight import in_flight_in_process
from redrive.tasks.killable import call as killable_call
from redrive.tasks.killable.call import LENGTH, RAISED, REBUILT, REPORT, RETURNED
from redrive.tasks.workers import processes
from redrive.tasks.workers.fork_server import ForkServer, open_control, serve

if TYPE_CHECKING:
    from redrive.calls.effects.request import KnownRequest

_BEFORE_THE_LIMIT = 0.5
_INTERVAL = 0.05


class CallWatch:
    """Writes to the caller, from the thread that answers and from the thread that watches.

    Args:
        caller: the connection to the process that makes the call.
        ends: when the process is killed, by the monotonic clock; None if requests are not reported.
    """

    def __init__(self, caller: socket.socket, ends: float | None) -> None:
        self._caller = caller
        self._ends = ends
        self._lock = threading.Lock()
        self._answered = threading.Event()

    def start(self) -> None:
        """Start the watching thread if requests are reported: otherwise a function that forks stays single-threaded."""
        if self._ends is not None:
            threading.Thread(target=self._watch, args=(self._ends,), name="redrive call watch", daemon=True).start()

    def answer(self, answer: bytes) -> None:
        """Send the answer."""
        with self._lock:
            self._answered.set()
            with contextlib.suppress(ConnectionError):  # the caller is gone
                self._caller.sendall(LENGTH.pack(len(answer)) + answer)

    def _watch(self, ends: float) -> None:
        left = ends - time.monotonic()
        wait = left - min(_BEFORE_THE_LIMIT, left / 4)
        reported: set[bytes] = set()
        while not self._answered.wait(max(0.0, wait)):
            for request in _requests():
                if request not in reported:
                    reported.add(request)
                    self._report(request)
            wait = _INTERVAL

    def _report(self, request: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._answered.is_set():
                self._caller.sendall(LENGTH.pack(REPORT | len(request)) + request)


def _requests() -> list[bytes]:
    with contextlib.suppress(Exception):  # the frames of other threads change while they are read
        return [pickle.dumps(request) for request in in_flight_in_process()]
    return []


def main(descriptor: int) -> NoReturn:
    """Fork the worker, and supervise it until the caller is gone."""
    control, launch = open_control(descriptor)
    server = ForkServer(control, launch["executor"], partial(_work, launch, os.getpid()), takes=1)
    server.fork(1, [launch["connection"]])
    serve(server)


def _work(launch: dict[str, Any], parent: int, connection: int) -> int:
    """Make the call that arrives by the connection, and answer."""
    os.setsid()  # so that it can be killed with all its children
    processes.die_with_parent(parent)
    processes.adopt_orphans()
    pid = os.getpid()
    with socket.socket(fileno=connection) as caller:
        caller.setblocking(True)
        caller.set_inheritable(False)
        job = _receive(caller)
        watch = CallWatch(caller, launch["watched_until"])
        watch.start()
        answer = _answer(launch["home"], job)
        if os.getpid() != pid:
            return 0  # a child that the function forked and that returned from it
        _clean_up()
        watch.answer(answer)
    return 0


def _receive(caller: socket.socket) -> bytes:
    data = bytearray()
    while chunk := caller.recv(1 << 20):
        data += chunk
        if len(data) >= LENGTH.size and len(data) == LENGTH.size + LENGTH.unpack_from(data)[0]:
            return bytes(data[LENGTH.size :])
    os._exit(0)  # the caller is gone


def _answer(home: dict[str, Any] | None, job: bytes) -> bytes:
    name = "the function"
    try:
        name, function, args, kwargs = _load(home, job)
        result = function(*args, **kwargs)
        if iscoroutine(result):
            import asyncio

            result = asyncio.run(result)
    except BaseException as error:
        return _encode_error(error)
    try:
        return pickle.dumps((RETURNED, result))
    except Exception as error:
        what = f"the result of {name}, a {type(result).__name__}, cannot be sent back from its process"
        advice = "Return plain data, or write it to a file and return its path."
        return pickle.dumps((RAISED, [], TypeError(f"{what} ({error}). {advice}")))


def _load(home: dict[str, Any] | None, job: bytes) -> Any:
    if home is not None:
        from redrive.tasks.workers import import_flow

        import_flow.becomes("import")
        killable_call.is_importing = True
        import_flow.FlowLocation(**home).load()
        killable_call.is_importing = False
        import_flow.becomes("call")
    name, call = pickle.loads(job)
    try:
        return name, *pickle.loads(call)
    except Exception as error:
        raise TypeError(
            f"the process for {name} cannot load it or its arguments ({type(error).__name__}: {error}). Define what it "
            "needs at the top of a module that can be imported."
        ) from error


def _encode_error(error: BaseException) -> bytes:
    own, sent = error.__traceback__, _find_requests(error)
    shown = "".join(traceback.format_exception(type(error), error, own and own.tb_next))
    with contextlib.suppress(Exception):
        error.add_note(f"in its own process:\n{shown.rstrip()}")
    try:
        answer = pickle.dumps((RAISED, sent, error))
        pickle.loads(answer)
    except Exception:  # many classes cannot be rebuilt from their `args`
        return _encode_parts(error, sent, shown)
    return answer


def _find_requests(error: BaseException) -> list[KnownRequest]:
    """Return the requests behind an error that must not be retried; the frames that show them stay here."""
    with contextlib.suppress(Exception):
        from redrive.calls.effects.idempotency import effects_of

        return effects_of(error)
    return []


def _encode_parts(error: BaseException, sent: list[KnownRequest], shown: str) -> bytes:
    """Encode an error that cannot be unpickled, with those parts that can be pickled."""
    state = {name: value for name, value in vars(error).items() if _can_be_sent(value)}
    args = tuple(arg if _can_be_sent(arg) else repr(arg) for arg in error.args)
    if _can_be_sent(type(error)):
        return pickle.dumps((REBUILT, sent, type(error), args, state))
    return pickle.dumps((RAISED, sent, RuntimeError(f"{shown.rstrip()}\n(an error whose class cannot be pickled)")))


def _can_be_sent(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def _clean_up() -> None:
    """Run exit handlers and flush output, since the process is killed once it has answered."""
    import atexit

    atexit._run_exitfuncs()
    if (recording := sys.modules.get("redrive.calls.metrics.publisher")) is not None:
        recording.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
