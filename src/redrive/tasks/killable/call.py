"""`redrive.run_with_timeout`: one call in a process of its own, which is killed at its limit.

A thread cannot be ended from outside; a process can, whatever it does: a driver that waits for a dead socket, a regular
expression that never ends, C code that holds the interpreter.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from redrive.calls.context import innermost
from redrive.calls.effects.request import KnownRequest, carry
from redrive.calls.function import endpoint_of
from redrive.policy import option_checks
from redrive.tasks.workers.protocol import UNFORKED, FrameReader
from redrive.tasks.workers.supervisor import Supervisor

P = ParamSpec("P")
R = TypeVar("R")

LENGTH = struct.Struct("!Q")
"""The length in front of a pickled call and of its pickled answer."""
RETURNED, RAISED, REBUILT = "returned", "raised", "rebuilt"
"""The first item of an answer. Then follows the result; or the requests behind an error and the error itself, or the
class, arguments and attributes of an error that cannot be unpickled."""
REPORT = 1 << 63
"""Flag in the length of a report before the answer: a pickled request that is in flight close to the timeout."""

_CHUNK = 1 << 20
_LONGEST_POLL = 86_400.0  # poll() takes milliseconds as a C int

is_importing = False
"""Whether this process imports the program for a call of another process."""


@overload
def run_with_timeout(
    function: Callable[P, Coroutine[Any, Any, R]], timeout: float, /, *args: P.args, **kwargs: P.kwargs
) -> R: ...
@overload
def run_with_timeout(function: Callable[P, R], timeout: float, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
def run_with_timeout(function: Callable[..., Any], timeout: float, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function in a process of its own, and kill that process, with all it has started, after `timeout` seconds.

    The function, its arguments and its result are pickled: define the function at the top of a module. An `async def`
    is run to its end. The time counts from this call on, and starting the process is part of it. What the process
    leaves running is killed when the call ends, however it ends: also by a Ctrl-C, or with this process.

    Raises what the function raised, with the traceback of its process as a note; `TimeoutError` where it did not finish
    in time; `ChildProcessError` where its process died (killed from outside, out of memory, a segmentation fault);
    `TypeError` where the function, an argument or the result cannot be pickled.

    function  what is called; the other arguments are its own
    timeout   seconds after which its process is killed
    """
    if not callable(function):
        raise TypeError(f"run_with_timeout needs a function, not {function!r}")
    option_checks.seconds("timeout", timeout, above=0)
    if is_importing:
        raise RuntimeError(
            "run_with_timeout is called when the program is imported: put that under `if __name__ == '__main__':`"
        )
    return _KillableCall(function, args, kwargs, timeout).make()


class _KillableCall:
    """One call in a process of its own, on the side of the caller."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float
    ) -> None:
        self._name = endpoint_of(function)
        self._timeout = timeout
        self._ends = time.monotonic() + timeout
        call = _pickled(self._name, (function, args, kwargs))
        self._home = _program_of(self._name) if b"__main__" in call else None
        self._job = pickle.dumps((self._name, call))
        # Only a service needs to know whether the call may be retried.
        self._watched_until = self._ends if innermost() is not None else None
        self._in_flight: list[KnownRequest] = []
        self._answer = bytearray()

    def make(self) -> Any:
        self._ours, theirs = socket.socketpair()
        try:
            launch = {"connection": theirs.fileno(), "home": self._home, "watched_until": self._watched_until}
            self._supervisor = Supervisor(
                "redrive.tasks.killable.worker", f"call of {self._name}", launch, takes=[theirs.fileno()]
            )
        except BaseException:
            self._ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._wait()
        finally:
            self._ours.close()
            self._supervisor.end()
        return self._result()

    def _wait(self) -> None:
        """Send the call, and wait for its answer."""
        self._ours.setblocking(False)
        unsent = memoryview(LENGTH.pack(len(self._job)) + self._job)
        events = FrameReader()
        poll = select.poll()
        poll.register(self._supervisor.control, select.POLLIN)
        poll.register(self._ours, select.POLLIN | select.POLLOUT)
        while not self._is_answered():
            left = self._ends - time.monotonic()
            if left <= 0:
                self._raise_timeout()
            for descriptor, event in poll.poll(min(left, _LONGEST_POLL) * 1000):
                if descriptor == self._supervisor.control.fileno():
                    self._read_answer()
                    if not self._is_answered():
                        self._raise_death(events)
                    continue
                if unsent and event & select.POLLOUT:
                    unsent = self._send(unsent)
                    if not unsent:
                        poll.modify(self._ours, select.POLLIN)
                if event & (select.POLLIN | select.POLLHUP) and not self._read_answer():
                    poll.unregister(self._ours)  # the supervisor reports how it died

    def _raise_timeout(self) -> NoReturn:
        error = TimeoutError(f"{self._name} did not finish within {self._timeout:g} s; its process was killed")
        carry(error, self._in_flight)
        raise error

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[self._ours.send(unsent) :]
        except BlockingIOError:
            return unsent
        except OSError:
            return unsent[:0]

    def _is_answered(self) -> bool:
        while len(self._answer) >= LENGTH.size:
            [length] = LENGTH.unpack_from(self._answer)
            ends = LENGTH.size + (length & ~REPORT)
            if len(self._answer) < ends:
                return False
            if not length & REPORT:
                return True
            self._in_flight.append(pickle.loads(self._answer[LENGTH.size : ends]))
            del self._answer[:ends]
        return False

    def _read_answer(self) -> bool:
        """Read available data; return whether the answer is complete or more can follow."""
        try:
            while data := self._ours.recv(_CHUNK):
                self._answer += data
        except BlockingIOError:
            return True
        except OSError:
            pass
        return self._is_answered()

    def _raise_death(self, events: FrameReader) -> None:
        """Raise the error of a worker that died without an answer."""
        from redrive.tasks.workers import exit_status

        try:
            data = self._supervisor.control.recv(_CHUNK)
        except OSError:
            data = b""
        for kind, _, details in events.feed(data) if data else [("dead", 1, None)]:
            if kind == UNFORKED:
                raise ChildProcessError(f"{self._name} cannot be called: {details}")
            how = exit_status.how_process(None if details is None else os.waitstatus_to_exitcode(details))
            raise ChildProcessError(f"the process of {self._name} died: {how}")

    def _result(self) -> Any:
        try:
            what, *parts = _Unpickler(io.BytesIO(memoryview(self._answer)[LENGTH.size :])).load()
        except Exception as error:
            raise TypeError(
                f"the answer of {self._name} cannot be unpickled in this process ({type(error).__name__}: {error}). "
                "Return plain data."
            ) from error
        if what != RETURNED:
            sent, *parts = parts
            _reraise(parts[0] if what == RAISED else _rebuild(*parts), sent)
        return parts[0]


class _Unpickler(pickle.Unpickler):
    """Unpickles objects of the main program, which the worker has imported as `__mp_main__`."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


def _reraise(error: BaseException, sent: list[KnownRequest]) -> NoReturn:
    carry(error, sent)
    try:
        raise error
    finally:
        del error  # no cycle through this frame


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    vars(error).update(state)
    return error


def _pickled(name: str, call: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(call)
    except Exception as error:
        raise TypeError(
            f"{name} cannot be called in a process of its own: it or an argument cannot be pickled ({error}). Define "
            "the function at the top of a module, and pass plain data."
        ) from error


def _program_of(name: str) -> dict[str, Any]:
    from redrive.tasks.workers.import_flow import FlowLocation

    home = FlowLocation.of_program()
    if home is None:
        raise TypeError(
            f"{name} is defined in a program without a file (a notebook, python -c, standard input), and its process "
            "has nothing to import: write it into a module."
        )
    return home.document()
