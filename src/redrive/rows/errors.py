"""Errors of batches and runs: their kind, and their text for reports and the store. Used by the rows runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redrive._internal.masked_errors import secrets_of, without
from redrive._internal.masking import mask_start
from redrive.calls.failures import attached_failure
from redrive.classify.classifier import Classifier
from redrive.dlq.insert.row_builder import error_text, storable
from redrive.errors import PipelineError, RedriveError
from redrive.model.calls import Kind, Scope

LONGEST = 2_000
"""Characters of a reason that are stored; an error may quote a whole file."""

LONGEST_DETAIL = 4_000
_MOST_CAUSES = 5

Hide = Callable[[str], str]
"""Returns a text without the values of redacted fields."""

_classifier = Classifier()


@dataclass(frozen=True, slots=True)
class RunFault:
    """The error that ended a run, as stored with the run for alerts and operators."""

    kind: Kind
    name: str
    """The class of the exception."""
    service: str | None = None
    """The service whose call failed, if the error is of one."""
    detail: str | None = None
    """All lines of the error, masked; None if it has only one line."""

    @classmethod
    def of(cls, error: BaseException, hide: Hide = str) -> RunFault:
        """Return the fault that an error is."""
        stated_kind = getattr(error, "kind", None) if isinstance(error, RedriveError) else None
        call_failure = attached_failure(error)
        service = None if call_failure is None else storable(call_failure.service)
        return cls(stated_kind or kind_of(error), storable(type(error).__name__), service, detail_of(error, hide))


def kind_of(error: BaseException, *, scope: Scope = "call") -> Kind:
    """Return the kind of an error: transient, permanent, …"""
    if isinstance(error, MemoryError):
        return Kind.RESOURCE
    if isinstance(error, PipelineError | SystemExit):  # the same code would exit again
        return Kind.PERMANENT
    return _classifier.classify(error, scope=scope).kind


def detail_of(error: BaseException, hide: Hide = str) -> str | None:
    """Return the text of an error, its notes and its causes, masked and shortened; None if it is a single line.

    Errors of redrive quote their causes already.
    """
    top, parts, seen = error, [_describe(error)], {id(error)}
    parts += getattr(error, "__notes__", ())
    while isinstance(error, Exception) and not isinstance(error, RedriveError) and len(seen) < _MOST_CAUSES:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            break
        parts.append(f"caused by {_describe(cause)}")
        seen.add(id(cause))
        error = cause
    text = "\n".join(str(part).strip() for part in parts)
    if "\n" not in text.strip():
        return None
    text = without(mask_start(hide(text), 10 * LONGEST), secrets_of(top))
    return storable(text if len(text) <= LONGEST_DETAIL else f"{text[: LONGEST_DETAIL - 1]}…")


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, RedriveError) else error_text(error)


def stop_reason(error: BaseException, hide: Hide = str) -> str:
    """Return why a run was stopped without a failure: by an interrupt, or by code that exits the program."""
    if not isinstance(error, SystemExit):
        return "interrupted"
    code = "" if error.code is None else mask_start(hide(repr(error.code)), LONGEST)
    return storable(f"interrupted: code of the pipeline called sys.exit({code})")


def sentence(error: BaseException, hide: Hide = str) -> str:
    """Return the first line of an error, masked and shortened, as text that can be stored and shown."""
    text = hide(_describe(error))
    # More text is masked than is stored, so that a secret is recognised even if the cut goes through it.
    line = next(iter(mask_start(text.strip(), 10 * LONGEST).splitlines()), "") or type(error).__name__
    return storable(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…")
