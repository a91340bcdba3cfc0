"""What redrive would do with an error, and what a policy amounts to.

question → failure → verdict (`classify`) → dry call (the real retry loop) → schedule (`Retry.decide`) → text

The code of a real call is asked, so that the answer cannot differ from what a call does. Used by `redrive explain` and
`redrive check`.
"""

from __future__ import annotations


class UnclearQuestion(ValueError):
    """A question that has no answer as it stands; the message is one sentence for the user who asked."""
