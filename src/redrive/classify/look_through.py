"""From an error of a library to the errors it stands for: a driver's error, a refused connection, a bad certificate."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.classify.names import libraries
from redrive.classify.responses import attribute

_LIBRARIES_THAT_WRAP = frozenset(
    {
        "aiohttp",
        "anyio",
        "asyncpg",
        "botocore",
        "httpcore",
        "httpx",
        "psycopg",
        "requests",
        "sqlalchemy",
        "urllib",
        "urllib3",
    }
)
_WRAPPED_IN = ("orig", "os_error", "certificate_error", "reason")
_DEPTH = 10


def look_through(error: BaseException) -> tuple[BaseException, ...]:
    """The error and, below it, what it wraps. An exception of the user's own is not opened."""
    chain = [error]
    while len(chain) < _DEPTH:
        inner = _wrapped_by(chain[-1], inside_library=len(chain) > 1)
        below = next((found for found in inner if all(found is not seen for seen in chain)), None)
        if below is None:
            break
        chain.append(below)
    return tuple(chain)


def stands_for_another(error: BaseException) -> bool:
    """Whether the error says nothing of its own beside what it wraps."""
    if isinstance(error, BaseExceptionGroup):
        return True
    known = libraries(type(error))
    if "sqlalchemy" in known:
        return isinstance(attribute(error, "orig"), BaseException)
    return bool(known & {"urllib", "urllib3"}) and isinstance(attribute(error, "reason"), BaseException)


def _wrapped_by(error: BaseException, *, inside_library: bool) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) == 1:
            yield error.exceptions[0]
        return
    known = libraries(type(error))
    # Below httpx, anyio raises a bare OSError from the error of the address it tried.
    if not known & _LIBRARIES_THAT_WRAP and not (inside_library and type(error) is OSError):
        return
    candidates: list[object] = [attribute(error, name) for name in _WRAPPED_IN]
    candidates += error.args[:2]
    if "botocore" in known and isinstance(error_arguments := attribute(error, "kwargs"), dict):
        candidates.append(error_arguments.get("error"))
    candidates.append(error.__cause__)
    for candidate in candidates:
        if isinstance(candidate, BaseExceptionGroup) and candidate.exceptions:
            # One attempt per address of a host; the first speaks for all.
            yield candidate.exceptions[0]
        elif isinstance(candidate, Exception):
            yield candidate
