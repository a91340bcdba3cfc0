"""`for attempt in service.attempts(): with attempt: …`: a block of code in place of a function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from redrive.calls.context import EnclosingAttempt, attempt_of, enclosing, innermost, inside, new_key
from redrive.calls.credentials import Grant
from redrive.calls.drivers import Driver, Invoke, Outcome, Raised, Returned, Step, Steps, aperform, perform, unwrap
from redrive.calls.effects.idempotency import SentKeys, mark_unprotected
from redrive.calls.effects.in_flight import left_in_flight
from redrive.calls.fast_path import FastPathContext, ServiceRunner
from redrive.calls.function import CalledFunction
from redrive.calls.retry_loop import AttemptResult, RetryLoop
from redrive.classify.signals import is_interrupt

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
BLOCK = "block"
"""The endpoint of blocks that have no other."""
_TARGET = CalledFunction(BLOCK, returns_responses=True)


class Attempts:
    """The attempts of one logical call, one by one; the loop ends after the first that succeeds."""

    def __init__(self, runner: ServiceRunner) -> None:
        self._runner = runner

    def __iter__(self) -> Iterator[AttemptBlock]:
        return _AttemptIterator(self._runner)

    def __aiter__(self) -> AsyncIterator[AttemptBlock]:
        return _AttemptIterator(self._runner)


class AttemptBlock:
    """One attempt as a context manager; it suppresses an error that is retried.

    number           counted from 1
    credential       the key or token in use, where the service has any
    timeout          seconds that the attempt may take, where that is set
    """

    __slots__ = ("_blocks", "_entered", "_mark", "_since", "credential", "number", "timeout")

    def __init__(self, blocks: _AttemptIterator, number: int, grant: Grant | None, timeout: float | None) -> None:
        self.number = number
        self.credential = None if grant is None else grant.value
        self.timeout = timeout
        if blocks.keys is not None and not blocks.is_nested:
            blocks.keys.begin()
        self._mark = attempt_of(blocks.runner.core, grant, blocks.outer, blocks.key, blocks.keys)
        self._blocks = blocks
        blocks.last = self._mark

    @property
    def idempotency_key(self) -> str | None:
        """The key of the call, the same in each attempt; None in a nested attempt of the service, which has its own."""
        return self._blocks.make_key()

    def __enter__(self) -> AttemptBlock:
        if hasattr(self, "_entered"):
            raise RuntimeError(
                "`with attempt:` was used twice for the same attempt: take the next one from the loop, "
                "`for attempt in service.attempts():`"
            )
        caller = sys._getframe(1)
        if caller.f_code.co_flags & _GENERATOR:
            self._mark.frame = caller
        self._since = caller.f_lasti
        self._entered = inside.set(self._mark)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        self._mark.over, self._mark.frame = True, None
        with suppress(ValueError):  # exited in another context than it was entered in
            inside.reset(self._entered)
        if error is not None and (not isinstance(error, Exception) or is_interrupt(error, self._since)):
            self._blocks.abandon()
            return False
        final = self._blocks.ended(Returned(None) if error is None else Raised(error, self._since))
        try:
            if isinstance(final, Raised) and final.error is not error:
                unwrap(final)
            return not isinstance(final, Raised)
        finally:
            del final  # no cycle through this frame


class _AttemptIterator:
    """The loop's iterator: performs the steps between two blocks, and passes the outcome of each to the retry loop.

    The first block takes the fast path where possible; then there is no retry loop until it fails.
    """

    is_nested = False

    def __init__(self, runner: ServiceRunner) -> None:
        self.runner = runner
        self.outer = innermost()
        self.key: str | None = None
        self.keys: SentKeys | None = None
        self.last: EnclosingAttempt | None = None
        self._in_block = False
        self._steps: Steps | None = None
        self._next: Step | None = None
        self._path: FastPathContext | None = runner.fast_path()
        if self._path is None:
            self._start_loop()

    def make_key(self) -> str | None:
        """Return the key of the call, made when it is first asked for: most blocks need none."""
        if self.key is None and not self.is_nested:
            self.key = new_key()
        return self.key

    def _start_loop(self) -> None:
        core, options = self.runner.core, self.runner.options
        nested = enclosing(core)
        if nested is not None:
            self.is_nested = True
            self.keys = nested.keys
            self._steps = self._once(nested.grant)
        else:
            self.key = options.idempotency_key or (new_key() if self.runner.keyed else None)
            self.keys = None if self.key is None else SentKeys()
            self._steps = self._make_loop(core.clock.monotonic(), None)
        self._continue(None)

    def _make_loop(self, began: float, first: AttemptResult | None) -> Steps:
        options = self.runner.options
        call = RetryLoop(
            self.runner.core,
            options.endpoint or _TARGET.endpoint,
            began=began,
            timeout=self.runner.timeout,
            returns_responses=True,
            idempotent=self.runner.core.idempotent is True,
            has_fallback=False,
            keys=self.keys,
            beside=self._beside,
        )
        return call.run(first)

    def _once(self, grant: Grant | None) -> Steps:
        """Yield the one attempt of a nested loop under the same service: only the outer one retries."""
        outcome: Outcome = yield Invoke(1, grant, self.runner.timeout)
        return outcome

    def __iter__(self) -> _AttemptIterator:
        return self

    def __aiter__(self) -> _AttemptIterator:
        return self

    def __next__(self) -> AttemptBlock:
        while (block := self._block()) is None:
            if self._next is None:
                raise StopIteration
            try:
                reply = perform(self._next, self._work())
            except BaseException:
                self.abandon()
                raise
            self._continue(reply)
        return block

    async def __anext__(self) -> AttemptBlock:
        while (block := self._block()) is None:
            if self._next is None:
                raise StopAsyncIteration
            try:
                reply = await aperform(self._next, self._work())
            except BaseException:
                self.abandon()
                raise
            self._continue(reply)
        return block

    def _block(self) -> AttemptBlock | None:
        """Return the next block; None where another step comes first."""
        if self._in_block:
            raise RuntimeError("each attempt must be used as `with attempt:` inside the loop")
        if self._path is not None:
            self._in_block = True
            return AttemptBlock(self, 1, self._path.grant, self.runner.timeout)
        step = self._next
        if isinstance(step, Invoke):
            self._in_block = True
            return AttemptBlock(self, step.number, step.grant, step.timeout)
        return None

    def ended(self, outcome: Outcome) -> Outcome | None:
        """Record the outcome of a block; return the call's outcome where the call is over."""
        final = self._final(outcome)
        if isinstance(final, Raised) and self.key is not None and self.runner.options.idempotency_key is None:
            mark_unprotected(final.error, self.key, self.keys)
        return final

    def _final(self, outcome: Outcome) -> Outcome | None:
        self._in_block = False
        if self._path is None:
            return self._send(outcome)
        path, self._path = self._path, None
        if isinstance(outcome, Returned) and self.runner.record_success(_TARGET, None, path):
            return outcome
        self._steps = self._make_loop(path.began, self.runner.result_of(outcome, path))
        return self._send(None)

    def _beside(self) -> list[Any]:
        """Return the requests that the last block has left in flight."""
        return [] if self.last is None else left_in_flight(self.last)

    def abandon(self) -> None:
        """Close the retry loop, which returns its permit."""
        if self._steps is not None:
            self._steps.close()

    def _continue(self, reply: Outcome | None) -> None:
        final = self._send(reply)
        try:
            if final is not None:
                unwrap(final)
        finally:
            del final, reply

    def _send(self, reply: Outcome | None) -> Outcome | None:
        assert self._steps is not None
        try:
            self._next = self._steps.send(reply)
        except StopIteration as end:
            self._next = None
            final: Outcome = end.value
            return final
        return None

    def _work(self) -> Driver:
        return Driver(_never, _never, self.runner.core.clock)


def _never(_: object) -> NoReturn:
    raise AssertionError("a block is run by its loop, not by the driver")
