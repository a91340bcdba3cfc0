"""What the failure of a batch, or of a run, is."""

from __future__ import annotations

from dataclasses import dataclass

from redrive._internal.masking import mask_start
from redrive.calls.failure_of import story_of
from redrive.classify.classifier import Classifier
from redrive.dlq.insert.row_builder import error_text, storable
from redrive.errors import PipelineError, RedriveError
from redrive.model.calls import Kind, Scope

LONGEST = 2_000
"""Characters of a reason that are stored; an error may quote a whole file."""

LONGEST_DETAIL = 4_000
_MOST_CAUSES = 5

_classifier = Classifier()


@dataclass(frozen=True, slots=True)
class RunFault:
    """The error that ended a run, for who judges it later."""

    kind: Kind
    name: str
    """The class of the exception."""
    service: str | None = None
    """Which service is to blame, where one is."""
    detail: str | None = None
    """More than the first line of what it says, masked; None where there is no more."""

    @classmethod
    def of(cls, error: BaseException) -> RunFault:
        """What this error was."""
        stated = getattr(error, "kind", None) if isinstance(error, RedriveError) else None
        story = story_of(error)
        service = None if story is None else storable(story.service)
        return cls(stated or kind_of(error), storable(type(error).__name__), service, detail_of(error))


def kind_of(error: BaseException, *, scope: Scope = "call") -> Kind:
    """The bucket an error falls into."""
    if isinstance(error, MemoryError):
        return Kind.RESOURCE
    if isinstance(error, PipelineError | SystemExit):  # the same code would exit again
        return Kind.PERMANENT
    return _classifier.classify(error, scope=scope).kind


def detail_of(error: BaseException) -> str | None:
    """Return all lines of an error with those of its notes and causes, masked and bounded; None where it has one line.

    Our own errors quote their causes already.
    """
    parts, seen = [_text(error)], {id(error)}
    parts += getattr(error, "__notes__", ())
    while isinstance(error, Exception) and not isinstance(error, RedriveError) and len(seen) < _MOST_CAUSES:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            break
        parts.append(f"caused by {_text(cause)}")
        seen.add(id(cause))
        error = cause
    text = "\n".join(str(part).strip() for part in parts)
    if "\n" not in text.strip():
        return None
    text = mask_start(text, 10 * LONGEST)
    return storable(text if len(text) <= LONGEST_DETAIL else f"{text[: LONGEST_DETAIL - 1]}…")


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, RedriveError) else error_text(error)


def stop_reason(error: BaseException) -> str:
    """Return why a run was stopped by what is no failure: an interrupt, or code that ends the program."""
    if not isinstance(error, SystemExit):
        return "interrupted"
    code = "" if error.code is None else mask_start(repr(error.code), LONGEST)
    return storable(f"interrupted: code of the pipeline called sys.exit({code})")


def sentence(error: BaseException) -> str:
    """What a person is told, as a text that can be stored; our own errors are sentences already."""
    text = _text(error)
    # Masking sees more than is kept, so that a secret at the cut is not missed.
    line = next(iter(mask_start(text.strip(), 10 * LONGEST).splitlines()), "") or type(error).__name__
    return storable(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…")
