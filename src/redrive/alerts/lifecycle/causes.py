"""The cause that runs of several pipelines and flows may share: what failed, where, and with which credential.

Runs that fail of one cause within `cause_window` are one alert with members. Two errors have one cause if their texts
are the same but for what differs from run to run, and if they name the same server, database and user. An error that
names none of these is told apart by the database that the run writes to.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from redrive.alerts.config.settings import AlertSettings
from redrive.dlq.fingerprint import template
from redrive.model.alerts import Subject
from redrive.model.calls import Kind

CAUSE = "cause:"
"""How the key of an alert begins that several runs may share."""
LATER = "@"
"""What follows in the key of a second alert of the same cause, while a first one is open that is older."""

_LONGEST = 2_000
# What is named after these words: `for user "etl"`, `server at "10.0.0.5"`, `host='wh'`.
_NAMED = re.compile(
    r"""\b(?:account|at|broker|bucket|catalog|cluster|database|db|endpoint|host|hostname|login|name|on|principal|role
    |server|to|user|warehouse)[ =:]{1,3}["'`]([^"'`]{1,200})["'`]""",
    re.VERBOSE | re.IGNORECASE,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://([^\s/?#'\"]{1,200})", re.IGNORECASE)
_PORT = re.compile(r"(?<![\w.-])([\w-]{1,63}(?:\.[\w-]{1,63}){1,8}):\d{2,5}(?!\w)")
# A full disk is one cause, whichever file was to be written.
_PATH = re.compile(r"""["']?(?<![\w/])/[^\s"':]{1,1000}["']?""")


def shared_cause(
    said: str, *, kind: str | None, subject: Subject, settings: AlertSettings, target: str | None = None
) -> str | None:
    """Return the key of the alert for all runs that fail of this; None where there is nothing to know them by.

    Args:
        said: The error, in words.
        kind: The verdict's kind.
        subject: The pipeline or flow. What has routes of its own shares an alert only with what has the same.
        settings: Those of this process.
        target: What the run writes to, `orders in postgresql://etl@warehouse/prod`.
    """
    text = said[:_LONGEST].replace(subject.name, "<name>") if len(subject.name) > 1 else said[:_LONGEST]
    if not text.strip():
        return None
    if kind == Kind.RESOURCE:
        text = _PATH.sub("<path>", text)
    places = sorted({*_NAMED.findall(text), *_ADDRESS.findall(text), *_PORT.findall(text)})
    if not places and target is not None:
        places = [target.partition(" in ")[2]]
    parts = [template(text), *places, _routes(subject, settings)]
    digest = blake2b("\0".join(parts).encode(errors="backslashreplace"), digest_size=8)
    return f"{CAUSE}{digest.hexdigest()}"


def is_of(key: str, group: str) -> bool:
    """Whether a key is that of the first or of a later alert of a cause."""
    return key.partition(LATER)[0] == group if key.startswith(CAUSE) else False


def _routes(subject: Subject, settings: AlertSettings) -> str:
    own = settings.pipelines.get(subject.name)
    return "" if own is None else repr(sorted(own.routes.items()))
