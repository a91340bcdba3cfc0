"""Stop signals are not failures."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from redrive import Classifier, classify
from redrive.classify.signals import is_stop_signal

STOP_SIGNALS = [
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError()]),
]


@pytest.mark.parametrize("signal", STOP_SIGNALS, ids=repr)
@pytest.mark.parametrize("scope", ["call", "row", "task"])
def test_stop_signal_is_never_classified(signal, scope):
    with pytest.raises(TypeError, match="is a signal to stop and is never classified"):
        classify(signal, scope)
    with pytest.raises(TypeError, match="is a signal to stop"):
        Classifier(unknown="transient").rule(Exception, kind="transient").classify(signal, scope)
    assert is_stop_signal(signal)


def test_cancelled_future_raises_a_stop_signal():
    future = concurrent.futures.Future()
    future.cancel()
    with pytest.raises(concurrent.futures.CancelledError) as caught:
        future.result()
    assert is_stop_signal(caught.value)


@pytest.mark.parametrize("error", [TimeoutError(), ValueError(), StopIteration()], ids=repr)
def test_ordinary_exception_is_no_stop_signal(error):
    assert not is_stop_signal(error)


@pytest.mark.parametrize("cls", [KeyboardInterrupt, asyncio.CancelledError, concurrent.futures.CancelledError])
def test_rule_cannot_name_a_stop_signal(cls):
    with pytest.raises(ValueError, match="is a signal to stop and is never classified"):
        Classifier().rule(cls, kind="transient")
