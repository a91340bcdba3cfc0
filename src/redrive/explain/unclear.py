"""What cannot be explained, and what to ask instead."""

from __future__ import annotations


class UnclearQuestion(ValueError):
    """A question that has no answer as it stands; the message is one sentence for the person who asked."""
