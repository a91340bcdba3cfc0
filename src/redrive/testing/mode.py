"""`set_testing`: switch waiting off, so that a test of failures takes no longer than one of success."""

from __future__ import annotations

from types import TracebackType

from redrive.calls.testmode import TestMode, activate
from redrive.policy import option_checks


class _TestingMode:
    """Ends the testing mode when used as a context manager."""

    def __init__(self, before: TestMode) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        activate(self._before)


def set_testing(testing: bool = True, *, longest_wait: float = 0.0, attempts: int | None = None) -> _TestingMode:
    """Cap every wait of every service and task at `longest_wait` seconds, and its attempts if a number is given.

    The mode lasts until `set_testing(False)`, or for a `with` block: `with set_testing(): …`.

    testing  False to restore the normal waits
    """
    if not testing:
        return _TestingMode(activate(TestMode()))
    option_checks.seconds("longest_wait", longest_wait, least=0)
    if attempts is not None:
        option_checks.count("attempts", attempts, least=1)
    return _TestingMode(activate(TestMode(longest_wait, attempts)))
