"""`for attempt in service.attempts(): with attempt: …` — the flow with a block of code in place of a function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import NoReturn

from redrive.calls.context import Inside, enclosing, inside, new_key
from redrive.calls.core import Core, Options
from redrive.calls.drivers import Work, aperform, perform, unwrap
from redrive.calls.flow import Call, Steps
from redrive.calls.steps import Invoke, Outcome, Raised, Returned, Step
from redrive.classify.signals import is_stop_signal


class Attempts:
    """The attempts of one logical call, made one by one; ends after the first that succeeds."""

    def __init__(self, core: Core, options: Options) -> None:
        self._core = core
        self._options = options

    def __iter__(self) -> Iterator[Block]:
        return _Blocks(self._core, self._options)

    def __aiter__(self) -> AsyncIterator[Block]:
        return _Blocks(self._core, self._options)


class Block:
    """One attempt as a context manager; it swallows an error that will be repeated."""

    def __init__(self, step: Invoke, mark: Inside, key: str | None, blocks: _Blocks) -> None:
        self.number = step.number
        self.credential = None if step.grant is None else step.grant.value
        self.timeout = step.timeout
        self.idempotency_key = key
        self._mark = mark
        self._blocks = blocks

    def __enter__(self) -> Block:
        inside.set(self._mark)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        inside.set(self._mark.outer)
        if error is not None and (not isinstance(error, Exception) or is_stop_signal(error)):
            self._blocks.steps.close()  # gives back what the flow holds
            return False
        final = self._blocks.ended(Returned(None) if error is None else Raised(error))
        if isinstance(final, Raised) and final.error is not error:
            unwrap(final)
        return not isinstance(final, Raised)


class _Blocks:
    """The loop's iterator: performs what stands between two blocks, and feeds the flow with how each ended."""

    def __init__(self, core: Core, options: Options) -> None:
        self._name = core.name
        self._outer = inside.get()
        nested = enclosing(core.name)
        if nested is not None:
            self._key = nested.next_key("attempts")
            self.steps = _once(core, options)
        else:
            self._key = options.idempotency_key or (new_key() if core.idempotent == "key" else None)
            self.steps = Call(
                core,
                options.endpoint or "attempts",
                began=core.clock.monotonic(),
                timeout=options.timeout,
                returns_responses=True,
                has_fallback=False,
            ).run(None)
        self._work = Work(_never, _never, core.clock)
        self._next: Step | None = None
        self._in_block = False
        self._go_on(None)

    def __iter__(self) -> _Blocks:
        return self

    def __aiter__(self) -> _Blocks:
        return self

    def __next__(self) -> Block:
        while not isinstance(step := self._step(), Invoke):
            if step is None:
                raise StopIteration
            self._go_on(perform(step, self._work))
        return self._open(step)

    async def __anext__(self) -> Block:
        while not isinstance(step := self._step(), Invoke):
            if step is None:
                raise StopAsyncIteration
            self._go_on(await aperform(step, self._work))
        return self._open(step)

    def _step(self) -> Step | None:
        if self._in_block:
            raise RuntimeError("each attempt must be used as `with attempt:` inside the loop")
        return self._next

    def _open(self, step: Invoke) -> Block:
        self._in_block = True
        return Block(step, Inside(self._name, self._outer, self._key), self._key, self)

    def ended(self, outcome: Outcome | None) -> Outcome | None:
        """Tell the flow; its answer is the call's outcome where the call is over."""
        self._in_block = False
        try:
            self._next = self.steps.send(outcome)
        except StopIteration as end:
            self._next = None
            final: Outcome = end.value
            return final
        return None

    def _go_on(self, answer: Outcome | None) -> None:
        if (final := self.ended(answer)) is not None:
            unwrap(final)


def _once(core: Core, options: Options) -> Steps:
    """A nested loop under the same service: the outer one does the repeating."""
    grant = None if core.credentials is None else core.credentials.current
    outcome: Outcome = yield Invoke(1, grant, options.timeout)
    return outcome


def _never(_: object) -> NoReturn:
    raise AssertionError("a block is run by its loop, not by the driver")
