"""Failure → verdict: a kind, a reason a person can read, the rule that matched, how long to wait. Pure.

What is loaded here is next to nothing; the tables come with the first failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.model.calls import Scope, Verdict


def classify(failure: object, scope: Scope = "call", *, now: datetime | None = None) -> Verdict:
    """The verdict on an exception or a response, by what redrive knows without rules of the user's.

    failure  an exception or a response
    scope    what was being done: one "call", one "row", one "task"
    now      what an HTTP date is compared with where the response has no Date of its own

    A signal to stop is no failure and raises TypeError: Ctrl-C, exit, cancellation (also the CancelledError of
    concurrent.futures, which is an Exception), the time limit of a job runner.
    """
    from redrive.classify.classifier import Classifier

    return Classifier().classify(failure, scope, now=now)
