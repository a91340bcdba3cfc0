"""The shared cause of failed runs: the same error, from the same server, database or user. Used by the rules for runs.

Runs that fail with the same cause within `cause_window` share one alert and are its members. Two errors have the same
cause if their texts differ only in values such as ids and times, and if they name the same server, database and user.
For an error that names none of these, the database that the run writes to decides.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from redrive.alerts.config.settings import AlertSettings
from redrive.dlq.fingerprint import template
from redrive.model.alerts import Subject
from redrive.model.calls import Kind

CAUSE = "cause:"
"""Prefix of the key of an alert that several runs may share."""
LATER = "@"
"""Separates the cause from a time in the key of a second alert of this cause, opened while an older alert is open."""

_MAX_LENGTH = 2_000
# A quoted name after one of these words: `for user "etl"`, `server at "10.0.0.5"`, `host='wh'`.
_QUOTED_NAME = re.compile(
    r"""\b(?:account|at|broker|bucket|catalog|cluster|database|db|endpoint|host|hostname|login|name|on|principal|role
    |server|to|user|warehouse)[ =:]{1,3}["'`]([^"'`]{1,200})["'`]""",
    re.VERBOSE | re.IGNORECASE,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://([^\s/?#'\"]{1,200})", re.IGNORECASE)
_PORT = re.compile(r"(?<![\w.-])([\w-]{1,63}(?:\.[\w-]{1,63}){1,8}):\d{2,5}(?!\w)")
# A full disk has the same cause for every file, so paths in such errors are replaced.
_PATH = re.compile(r"""["']?(?<![\w/])/[^\s"':]{1,1000}["']?""")


def shared_cause(
    error: str, *, kind: str | None, subject: Subject, settings: AlertSettings, target: str | None = None
) -> str | None:
    """Return the key of the alert for all runs that fail with this error; None if the error has no text.

    Args:
        error: The text of the error.
        kind: The kind of the verdict.
        subject: The pipeline or flow. Subjects with different routes never share an alert.
        settings: The alert settings.
        target: What the run writes to, such as `orders in postgresql://etl@warehouse/prod`.
    """
    text = error[:_MAX_LENGTH].replace(subject.name, "<name>") if len(subject.name) > 1 else error[:_MAX_LENGTH]
    if not text.strip():
        return None
    if kind == Kind.RESOURCE:
        text = _PATH.sub("<path>", text)
    places = sorted({*_QUOTED_NAME.findall(text), *_ADDRESS.findall(text), *_PORT.findall(text)})
    if not places and target is not None:
        places = [target.partition(" in ")[2]]
    parts = [template(text), *places, _routes(subject, settings)]
    digest = blake2b("\0".join(parts).encode(errors="backslashreplace"), digest_size=8)
    return f"{CAUSE}{digest.hexdigest()}"


def is_of(key: str, group: str) -> bool:
    """Return whether a key belongs to the first or a later alert of a cause."""
    return key.partition(LATER)[0] == group if key.startswith(CAUSE) else False


def _routes(subject: Subject, settings: AlertSettings) -> str:
    own = settings.pipelines.get(subject.name)
    return "" if own is None else repr(sorted(own.routes.items()))
