"""From an error of a library to the errors it wraps: a driver's error, a refused connection, a bad certificate."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.classify.packs import PACKS
from redrive.classify.responses import attribute
from redrive.classify.type_names import libraries, type_names

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
        *(pack.library for pack in PACKS if pack.wraps),
    }
)
_WRAPPED_IN = ("orig", "os_error", "certificate_error", "reason")
_REPORTED_IN = {
    f"{pack.library}.{name}": name_of_attribute for pack in PACKS for name, name_of_attribute in pack.opens.items()
}
_DEPTH = 10
_MOST_LEAVES = 1_000


def unwrap_chain(error: BaseException) -> tuple[BaseException, ...]:
    """Return the error and, below it, what it wraps. An exception of the user's own is not unwrapped."""
    chain = [error]
    while len(chain) < _DEPTH:
        inner = _wrapped_by(chain[-1], inside_library=len(chain) > 1)
        below = next((candidate for candidate in inner if all(candidate is not known for known in chain)), None)
        if below is None:
            break
        chain.append(below)
    return tuple(chain)


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the errors in a group and in its inner groups, up to a limit."""
    candidate: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting and len(candidate) < _MOST_LEAVES:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions[:_MOST_LEAVES])
        else:
            candidate.append(error)
    return candidate


def origin_of(error: BaseException) -> Exception | None:
    """Return the error that another was raised for: by `from`, or in the very block that handled it.

    An error that a function called there has raised, a signal handler for example, has nothing to do with the one that
    was being handled.
    """
    if isinstance(error.__cause__, Exception):
        return error.__cause__
    handled, last = error.__context__, error.__traceback__
    if error.__suppress_context__ or not isinstance(handled, Exception) or handled.__traceback__ is None:
        return None
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return handled if last is not None and last.tb_frame is handled.__traceback__.tb_frame else None


def is_wrapper(error: BaseException) -> bool:
    """Return whether the error adds nothing of its own to what it wraps."""
    if isinstance(error, BaseExceptionGroup):
        return True
    if next(_reported_by(error), None) is not None:
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
    yield from _reported_by(error)
    candidates: list[object] = [attribute(error, name) for name in _WRAPPED_IN]
    candidates += error.args[:2]
    if "botocore" in known and isinstance(error_arguments := attribute(error, "kwargs"), dict):
        candidates.append(error_arguments.get("error"))
    candidates.append(error.__cause__)
    for candidate in candidates:
        if isinstance(candidate, BaseExceptionGroup) and candidate.exceptions:
            # There is one attempt per address of a host; the first represents all.
            yield candidate.exceptions[0]
        elif isinstance(candidate, Exception):
            yield candidate


def _reported_by(error: BaseException) -> Iterator[Exception]:
    """Yield the error that a client's error only reports, such as that retries are exhausted or no host answered."""
    name_of_attribute = next((_REPORTED_IN[name] for name in type_names(type(error)) if name in _REPORTED_IN), None)
    if name_of_attribute is None:
        return
    reported: object = attribute(error, name_of_attribute)
    if isinstance(reported, dict):
        # There is one error per host; the first represents all.
        reported = next(iter(reported.values()), None)
    if isinstance(reported, Exception):
        yield reported
