"""Classify failures: exception or response → verdict, with a kind, a reason, the matching rule and how long to wait.

Pure rules, used by services, pipelines and tasks. Importing this package is cheap; the tables are loaded with the first
failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.model.calls import Scope, Verdict


def classify(failure: object, scope: Scope = "call", *, now: datetime | None = None) -> Verdict:
    """Return the verdict on an exception or a response, by the built-in tables alone.

    failure  an exception or a response
    scope    what was being done: one "call", one "row", one "task"
    now      what an HTTP date is compared with where the response has no Date of its own

    Raises TypeError for a signal to stop, which is never classified: Ctrl-C, exit, cancellation (also the
    CancelledError of concurrent.futures, which is an Exception), the time limit of a job runner.
    """
    from redrive.classify.classifier import Classifier

    return Classifier().classify(failure, scope, now=now)
