"""Makes the exceptions that a traceback tells of, as like to the real ones as its text allows.

A traceback has lost what an exception carries: its response, its SQLSTATE, its errno. Where the text has it in a form
that a library is known to write, it is put back; the verdict is then the classifier's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from socket import gaierror
from typing import Any

from redrive.classify.signals import is_stop_signal
from redrive.classify.type_names import libraries
from redrive.errors import CallError, CircuitOpen, QuotaExhausted
from redrive.explain import exception_names
from redrive.explain.fake_errors import (
    FailureDetails,
    FakeResponse,
    aws_error,
    class_of,
    grpc_error,
    instance_of,
    kafka_error,
    mysql_error,
    put,
    sqlite_error,
)
from redrive.explain.question import Question
from redrive.explain.traceback_text import TracebackException
from redrive.explain.unclear import UnclearQuestion
from redrive.model.calls import Failure, Kind, Verdict

_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_STATUS = (
    re.compile(r"^(?:Client error|Server error|Redirect response|Informational response) '(\d{3})\b"),  # httpx
    re.compile(r"^(\d{3}) (?:Client|Server) Error:"),  # requests
    re.compile(r"^HTTP Error (\d{3}):"),  # urllib
    re.compile(r"^(\d{3}), message="),  # aiohttp
)
_WRAPPED = re.compile(r"^\((?P<type>[\w.]+)\) (?P<said>.*)", re.DOTALL)
_AWS = re.compile(
    r"An error occurred \((?P<code>\w+)\) when calling the \w+ operation[^:]{0,200}: (?P<said>.*)", re.DOTALL
)
_MYSQL = re.compile(r"^\((?P<number>\d{4}), (?P<said>.*)\)$", re.DOTALL)
_GRPC = re.compile(r"status = StatusCode\.(?P<status>\w+)\s+details = \"(?P<said>.*?)\"", re.DOTALL)
_KAFKA = re.compile(r"KafkaError\{[^{}\"\n]{0,200}?code=(?P<code>\w+)[^{}\"\n]{0,200}?str=\"(?P<said>[^\"\n]*)\"")
_STORY = re.compile(
    r"service '(?P<service>[^'\n]{1,200})'(?:, (?P<endpoint>[^\n]{0,500}?))?: \d+ attempts? in (?P<elapsed>[\d.]+) s; "
    rf"(?P<kind>{'|'.join(Kind)}): (?P<reason>.{{0,2000}}?); (?P<why>[^;]{{0,500}}?)\. (?P<advice>[A-Z].*)",
    re.DOTALL,
)
_UNSENT = re.compile(
    r"service '(?P<service>[^'\n]{1,200})'(?:, (?P<endpoint>[^\n]{0,500}?))?: (?P<why>[^;]{0,500}?); nothing was sent "
    r"\(0 attempts in (?P<elapsed>[\d.]+) s\)\. (?P<advice>[A-Z].*)",
    re.DOTALL,
)
_COME_BACK = re.compile(r"Come back in (?P<count>[\d.]+) (?P<unit>s|min|h|days)\.")
_UNITS = {"s": 1, "min": 60, "h": 3_600, "days": 86_400}
_SQLITE = {
    "database is locked": "SQLITE_BUSY",
    "database table is locked": "SQLITE_LOCKED",
    "attempt to write a readonly database": "SQLITE_READONLY",
    "disk I/O error": "SQLITE_IOERR",
    "database disk image is malformed": "SQLITE_CORRUPT",
    "database or disk is full": "SQLITE_FULL",
    "unable to open database file": "SQLITE_CANTOPEN",
    "file is not a database": "SQLITE_NOTADB",
    "UNIQUE constraint failed": "SQLITE_CONSTRAINT_UNIQUE",
    "NOT NULL constraint failed": "SQLITE_CONSTRAINT_NOTNULL",
    "CHECK constraint failed": "SQLITE_CONSTRAINT_CHECK",
    "FOREIGN KEY constraint failed": "SQLITE_CONSTRAINT_FOREIGNKEY",
}
"""What SQLite says for the codes that its errors carry, and tracebacks do not show."""


def of_traceback(chain: tuple[TracebackException, ...], given: FailureDetails | None = None) -> Question:
    """The question that a traceback asks: about its last exception, which those before it have led to."""
    error: BaseException | None = None
    for told in chain:
        error = _linked(told, _made(told, given), error)
    last = chain[-1]
    if error is None or is_stop_signal(error):
        raise UnclearQuestion(f"{last.type} is a signal to stop: redrive lets it pass and never judges it")
    path = exception_names.path_of(type(error))
    before = [told.type for told in reversed(chain[:-1])]
    if (wrapped := _WRAPPED.match(last.message)) and wrapped["type"] not in before and "." in wrapped["type"]:
        before.insert(0, wrapped["type"])
    led = f", after {', '.join(before)}" if before else ""
    holds = f", which holds {', '.join(told.type for told in last.parts)}" if last.parts else ""
    return Question(
        what=last.type,
        read_as=f"traceback of {last.type}{led}{holds}",
        failure=error,
        condition=path,
        note=_note(chain),
    )


def _note(chain: tuple[TracebackException, ...]) -> str | None:
    last = chain[-1]
    story = next((told.story for told in reversed(chain) if told.story), None)
    if story is not None:
        return f"redrive has said: {story}"
    if exception_names.find_class(last.type) is None:
        return (
            f"the class {last.type} is not here; judged by the name and what led to it, not by what it derives from: "
            "ask for it as FILE.py:NAME to have that, too"
        )
    return None


def _made(told: TracebackException, given: FailureDetails | None) -> BaseException:
    cls = exception_names.find_class(told.type) or class_of(told.type)
    if told.parts and issubclass(cls, BaseExceptionGroup):
        parts = [made for told in told.parts if isinstance(made := _made(told, given), Exception)]
        return ExceptionGroup(told.message, parts or [Exception()])
    for library, remake in _REMAKE.items():
        if library in libraries(cls) and (remade := remake(told.message, cls)) is not None:
            return remade
    error = instance_of(cls, told.message, given)
    _give_back(error, told)
    return error


def _give_back(error: BaseException, told: TracebackException) -> None:
    """Put what the text tells where the classifier looks for it."""
    if (number := _ERRNO.match(told.message)) and isinstance(error, OSError):
        put(error, errno=int(number[1]))
    elif number:  # of the system, or, where it is negative, of its resolver
        cls = OSError if int(number[1]) > 0 else gaierror
        error.__cause__ = cls(int(number[1]), told.message[number.end() :].strip())
    if status := next((found for form in _STATUS if (found := form.match(told.message))), None):
        put(error, response=FakeResponse(int(status[1]), FailureDetails()), status=int(status[1]), code=int(status[1]))
    if (wrapped := _WRAPPED.match(told.message)) and "sqlalchemy" in libraries(type(error)):
        said = wrapped["said"].partition("\n[SQL: ")[0]
        put(error, orig=_made(TracebackException(type=wrapped["type"], message=said), None))
    if story := _STORY.search(told.story or told.message):
        put(error, redrive=_failure(story, Verdict(Kind(story["kind"]), story["reason"], "redrive's note")))
    elif isinstance(error, CallError) and (story := _UNSENT.search(told.message)):
        kind = Kind.QUOTA if isinstance(error, QuotaExhausted) else Kind.TRANSIENT
        put(error, redrive=_failure(story, Verdict(kind, story["why"], "redrive's note")))
    if isinstance(error, CircuitOpen) and (back := _COME_BACK.search(told.message)):
        error.retry_in = float(back["count"]) * _UNITS[back["unit"]]


def _failure(story: re.Match[str], verdict: Verdict) -> Failure:
    endpoint = story["endpoint"] or story["service"]
    return Failure(story["service"], endpoint, (), float(story["elapsed"]), verdict, story["why"], story["advice"])


def _linked(told: TracebackException, error: BaseException, before: BaseException | None) -> BaseException:
    """Tie an error to the one before it, as its library does."""
    if before is None or told.link is None:
        return error
    if told.link == "cause":
        error.__cause__ = before
    if libraries(type(error)) & {"requests", "urllib3", "urllib"} and isinstance(before, Exception):
        put(error, args=(before,), reason=before)  # they carry what happened to the connection below them
    return error


# ── of libraries whose errors are their code ──────────────────────────────────────────────────────────────────────────


def _remake_sqlite(message: str, cls: type[BaseException]) -> Exception | None:
    name = next((name for said, name in _SQLITE.items() if message.startswith(said)), None)
    return sqlite_error(name, message, cls) if name else None


def _remake(form: re.Pattern[str], make: Callable[[Any, str, type[BaseException]], Exception], code: Any = str) -> Any:
    def remake(message: str, cls: type[BaseException]) -> Exception | None:
        found = form.search(message)
        return make(code(found[1]), found["said"], cls) if found else None

    return remake


_REMAKE: dict[str, Callable[[str, type[BaseException]], Exception | None]] = {
    "botocore": _remake(_AWS, aws_error),
    "confluent_kafka": _remake(_KAFKA, kafka_error),
    "grpc": _remake(_GRPC, grpc_error),
    "pymysql": _remake(_MYSQL, mysql_error, int),
    "MySQLdb": _remake(_MYSQL, mysql_error, int),
    "aiomysql": _remake(_MYSQL, mysql_error, int),
    "sqlite3": _remake_sqlite,
}
