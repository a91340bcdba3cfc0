"""Tracebacks as Python prints them: parsed, and turned into exceptions that are classified as the real ones would be.

A traceback has lost what an exception carries: its response, its SQLSTATE, its errno. Where the text has it in a form
that a library is known to write, it is put back; the verdict is then the classifier's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from socket import gaierror
from typing import Any, Literal

from redrive.classify.signals import is_stop_signal
from redrive.classify.type_names import libraries
from redrive.errors import CallError, CircuitOpen, QuotaExhausted
from redrive.explain import UnclearQuestion, exception_names
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
from redrive.model.calls import Failure, Kind, Verdict

Link = Literal["cause", "context"]

_HEADER = re.compile(r"^(?P<before>.*?)(?:\+ )?(?P<group>Exception Group )?Traceback \(most recent call last\):\s*$")
_RAISED = re.compile(r"^(?P<type>[^\W\d][\w.]*(?:\.<locals>\.[\w.]+)*)(?::(?: (?P<text>.*))?)?$")
_LINKS: dict[str, Link] = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
# The drawing of a group: a margin before its lines, a rule before each part, a rule at the end.
_MARGIN = re.compile(r"^\s*\| ?")
_PART = re.compile(r"^\s*\+-\+?-+ (?:\d+|\.\.\.) -+$")
_END = re.compile(r"^\s*\+-+$")
_HOLDS_OTHERS = re.compile(r"\(\d+ sub-exceptions?\)$")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOTE = "redrive: service "
_MOST_LINES = 50  # of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class TracebackException:
    """One exception as a traceback shows it."""

    type: str
    message: str = ""
    note: str | None = None
    """redrive's own note: what the service did before it raised the error."""
    link: Link | None = None
    """How the one before it in the text, where there is one, led to it."""
    parts: tuple[TracebackException, ...] = ()
    """The exceptions in a group, those of inner groups included."""


@dataclass(slots=True)
class _Block:
    """The lines of one exception: its frames, its message, its parts."""

    link: Link | None = None
    indent: str = ""
    is_group: bool = False
    lines: list[str] = field(default_factory=list)
    parts: list[list[str]] = field(default_factory=list)
    follows: Link | None = None
    """How the next exception is linked to it; None where none is."""

    def take(self, line: str) -> None:
        """Add a line of the text."""
        plain = self._plain(line)
        if plain is not None and (link := _LINKS.get(plain.strip())) is not None:
            self.follows = link
        elif plain is not None and self.follows is None:
            self.lines.append(plain)

    def _plain(self, line: str) -> str | None:
        """Return the line as it would be outside of a group; None for one that belongs to a part of it."""
        if not self.is_group:
            return line.removeprefix(self.indent)
        if _PART.match(line):
            self.parts.append([])
        elif _END.match(line):
            return None
        elif not _MARGIN.match(line):
            return line
        elif not self.parts:
            return _MARGIN.sub("", line)
        else:
            self.parts[-1].append(_MARGIN.sub("", line))
        return None


def parse(text: str) -> tuple[TracebackException, ...]:
    """Return the exceptions of the last traceback in a text, in the order in which they were raised."""
    lines = [_COLOUR.sub("", line).rstrip("\r") for line in text.split("\n")]
    return _chain(lines) or _alone(lines)


def _chain(lines: Sequence[str]) -> tuple[TracebackException, ...]:
    chain: tuple[TracebackException, ...] = ()
    for block in _blocks(lines):
        if shown := _parse_block(block):
            chain = (*chain, shown) if block.link else (shown,)
    return chain


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield the exceptions of a text: each starts with the header of its traceback."""
    block: _Block | None = None
    for place, line in enumerate(lines):
        # The tracebacks of a group's parts are behind its margin, and belong to its block.
        header = None if block is not None and block.is_group and _MARGIN.match(line) else _HEADER.match(line)
        if header is None:
            if block is not None:
                block.take(line)
            continue
        if block is not None:
            yield block
        before = header["before"]
        link = None if block is None else block.follows
        # In a log, only the header is moved; pasted into other text, or with the name of a container before each line,
        # all lines are.
        moved = not before.strip() or (place + 1 < len(lines) and lines[place + 1].startswith(f"{before}  "))
        block = _Block(link, before if moved else "", bool(header["group"]))
    if block is not None:
        yield block


def _parse_block(block: _Block) -> TracebackException | None:
    """Return the exception, which follows the indented frames."""
    for place, line in enumerate(block.lines):
        if not line.strip() or line[0].isspace():
            continue
        found = _RAISED.match(line)
        if found is None:
            return None  # the traceback is truncated, and other text follows
        message, note = _message(found["text"] or "", block.lines[place + 1 :])
        parts = [part for lines in block.parts if (part := _part(lines))]
        return TracebackException(
            type=found["type"],
            message=message,
            note=note,
            link=block.link,
            parts=tuple(part for part in parts if not _HOLDS_OTHERS.search(part.message)),
        )
    return None


def _part(lines: list[str]) -> TracebackException | None:
    """Return the exception of a part, which has no traceback if it was never raised."""
    chain = _chain(lines)
    return chain[-1] if chain else _parse_block(_Block(lines=lines))


def _message(first: str, following: Sequence[str]) -> tuple[str, str | None]:
    """Return the message of an exception, which may have several lines, and redrive's note below it."""
    lines, note = [first], None
    for line in following[:_MOST_LINES]:
        if line.startswith(_NOTE):
            note = line.removeprefix("redrive: ")
        elif note is None:
            lines.append(line)
    return "\n".join(lines).strip(), note


def _alone(lines: Sequence[str]) -> tuple[TracebackException, ...]:
    """Return the last line that is an exception without its frames, as in the output of `tail -1` or in a log."""
    for place in range(len(lines) - 1, -1, -1):
        found = _RAISED.match(lines[place].strip())
        if found and found["text"] is not None and _looks_like_one(found["type"]):
            message, note = _message(found["text"], lines[place + 1 :])
            return (TracebackException(type=found["type"], message=message, note=note),)
    return ()


def _looks_like_one(name: str) -> bool:
    """Return whether a word before a colon is the name of an exception, which most words of a log are not."""
    return "." in name or name.endswith(("Error", "Exception", "Warning", "Timeout", "Group"))


# ── the exceptions that a traceback shows ─────────────────────────────────────────────────────────────────────────────


_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_STATUS = (
    re.compile(r"^(?:Client error|Server error|Redirect response|Informational response) '(\d{3})\b"),  # httpx
    re.compile(r"^(\d{3}) (?:Client|Server) Error:"),  # requests
    re.compile(r"^HTTP Error (\d{3}):"),  # urllib
    re.compile(r"^(\d{3}), message="),  # aiohttp
)
_WRAPPED = re.compile(r"^\((?P<type>[\w.]+)\) (?P<text>.*)", re.DOTALL)
_AWS = re.compile(
    r"An error occurred \((?P<code>\w+)\) when calling the \w+ operation[^:]{0,200}: (?P<text>.*)", re.DOTALL
)
_MYSQL = re.compile(r"^\((?P<number>\d{4}), (?P<text>.*)\)$", re.DOTALL)
_GRPC = re.compile(r"status = StatusCode\.(?P<status>\w+)\s+details = \"(?P<text>.*?)\"", re.DOTALL)
_KAFKA = re.compile(r"KafkaError\{[^{}\"\n]{0,200}?code=(?P<code>\w+)[^{}\"\n]{0,200}?str=\"(?P<text>[^\"\n]*)\"")
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
"""The messages of SQLite for the codes that its errors carry, which tracebacks do not show."""


def of_traceback(chain: tuple[TracebackException, ...], given: FailureDetails | None = None) -> Question:
    """Return the question about the last exception of a traceback, which those before it have caused."""
    error: BaseException | None = None
    for shown in chain:
        error = _linked(shown, _made(shown, given), error)
    last = chain[-1]
    if error is None or is_stop_signal(error):
        raise UnclearQuestion(f"{last.type} is a signal to stop: redrive lets it pass and never classifies it")
    path = exception_names.path_of(type(error))
    before = [shown.type for shown in reversed(chain[:-1])]
    if (wrapped := _WRAPPED.match(last.message)) and wrapped["type"] not in before and "." in wrapped["type"]:
        before.insert(0, wrapped["type"])
    led = f", after {', '.join(before)}" if before else ""
    holds = f", which holds {', '.join(part.type for part in last.parts)}" if last.parts else ""
    return Question(
        what=last.type,
        read_as=f"traceback of {last.type}{led}{holds}",
        failure=error,
        condition=path,
        note=_note(chain),
    )


def _note(chain: tuple[TracebackException, ...]) -> str | None:
    last = chain[-1]
    note = next((shown.note for shown in reversed(chain) if shown.note), None)
    if note is not None:
        return f"redrive reported: {note}"
    if exception_names.find_class(last.type) is None:
        return (
            f"the class {last.type} is not here; classified by its name and its causes, not by its base classes: "
            "ask for it as FILE.py:NAME to include them"
        )
    return None


def _made(shown: TracebackException, given: FailureDetails | None) -> BaseException:
    cls = exception_names.find_class(shown.type) or class_of(shown.type)
    if shown.parts and issubclass(cls, BaseExceptionGroup):
        parts = [made for shown in shown.parts if isinstance(made := _made(shown, given), Exception)]
        return ExceptionGroup(shown.message, parts or [Exception()])
    for library, remake in _REMAKE.items():
        if library in libraries(cls) and (remade := remake(shown.message, cls)) is not None:
            return remade
    error = instance_of(cls, shown.message, given)
    _give_back(error, shown)
    return error


def _give_back(error: BaseException, shown: TracebackException) -> None:
    """Set the attributes that the classifier reads, as far as the text shows them."""
    if (number := _ERRNO.match(shown.message)) and isinstance(error, OSError):
        put(error, errno=int(number[1]))
    elif number:  # of the system, or, where it is negative, of its resolver
        cls = OSError if int(number[1]) > 0 else gaierror
        error.__cause__ = cls(int(number[1]), shown.message[number.end() :].strip())
    if status := next((found for form in _STATUS if (found := form.match(shown.message))), None):
        put(error, response=FakeResponse(int(status[1]), FailureDetails()), status=int(status[1]), code=int(status[1]))
    if (wrapped := _WRAPPED.match(shown.message)) and "sqlalchemy" in libraries(type(error)):
        message = wrapped["text"].partition("\n[SQL: ")[0]
        put(error, orig=_made(TracebackException(type=wrapped["type"], message=message), None))
    if story := _STORY.search(shown.note or shown.message):
        put(error, redrive=_failure(story, Verdict(Kind(story["kind"]), story["reason"], "redrive's note")))
    elif isinstance(error, CallError) and (story := _UNSENT.search(shown.message)):
        kind = Kind.QUOTA if isinstance(error, QuotaExhausted) else Kind.TRANSIENT
        put(error, redrive=_failure(story, Verdict(kind, story["why"], "redrive's note")))
    if isinstance(error, CircuitOpen) and (back := _COME_BACK.search(shown.message)):
        error.retry_in = float(back["count"]) * _UNITS[back["unit"]]


def _failure(story: re.Match[str], verdict: Verdict) -> Failure:
    endpoint = story["endpoint"] or story["service"]
    return Failure(story["service"], endpoint, (), float(story["elapsed"]), verdict, story["why"], story["advice"])


def _linked(shown: TracebackException, error: BaseException, before: BaseException | None) -> BaseException:
    """Link an error to the one before it, as its library does."""
    if before is None or shown.link is None:
        return error
    if shown.link == "cause":
        error.__cause__ = before
    if libraries(type(error)) & {"requests", "urllib3", "urllib"} and isinstance(before, Exception):
        put(error, args=(before,), reason=before)  # they carry the error of the connection below them
    return error


# ── of libraries whose errors are their code ──────────────────────────────────────────────────────────────────────────


def _remake_sqlite(message: str, cls: type[BaseException]) -> Exception | None:
    name = next((name for said, name in _SQLITE.items() if message.startswith(said)), None)
    return sqlite_error(name, message, cls) if name else None


def _remake(form: re.Pattern[str], make: Callable[[Any, str, type[BaseException]], Exception], code: Any = str) -> Any:
    def remake(message: str, cls: type[BaseException]) -> Exception | None:
        found = form.search(message)
        return make(code(found[1]), found["text"], cls) if found else None

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
