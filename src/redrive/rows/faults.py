"""What the failure of a batch, or of a run, is."""

from __future__ import annotations

from redrive.classify.classifier import Classifier
from redrive.dlq.prepare import error_text
from redrive.errors import PipelineError, RedriveError
from redrive.masking import mask
from redrive.model import Kind, Scope

_classifier = Classifier()


def kind_of(error: BaseException, *, scope: Scope = "call") -> Kind:
    """The bucket an error falls into."""
    if isinstance(error, MemoryError):
        return Kind.RESOURCE
    if isinstance(error, PipelineError):
        return Kind.PERMANENT
    return _classifier.classify(error, scope=scope).kind


def sentence(error: BaseException) -> str:
    """What a person is told; our own errors are sentences already."""
    text = str(error) if isinstance(error, RedriveError) else error_text(error)
    return mask(text).strip().splitlines()[0] if text.strip() else type(error).__name__
