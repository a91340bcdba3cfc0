"""Questions of the user: a status, a code or the name of an exception, and the failure that each means."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from redrive._internal.masking import mask_start
from redrive.classify.signals import is_stop_type
from redrive.classify.tables.services import AWS, GRPC, KAFKA
from redrive.classify.tables.sql import MYSQL
from redrive.errors import CircuitOpen
from redrive.explain import UnclearQuestion, exception_names
from redrive.explain.fake_errors import (
    TYPICAL_COOLDOWN,
    DatabaseError,
    FailureDetails,
    FakeResponse,
    aws_error,
    class_of,
    grpc_error,
    instance_of,
    kafka_error,
    mysql_error,
    sqlite_error,
)
from redrive.model.calls import format_duration

_STATUS = re.compile(
    r"(?:HTTP(?:/[\d.]+)?[\s_-]*|status(?:[\s_-]?code)?[\s:=]*)?([1-9]\d\d)(?:\s[a-z][a-z' -]*)?", re.IGNORECASE
)
_ERRNO = re.compile(r"(?:\w+:\s*)?\[?errno[\s=]*(-?\d{1,6})\]?(?:\s.*)?", re.IGNORECASE)
_RESOLVER = "socket.gaierror"
_SQLSTATE = re.compile(r"(?:SQLSTATE[\s=]*)?((?=\w*\d)[0-9A-Z]{5})", re.IGNORECASE)
_MYSQL = re.compile(r"(?:MySQL[\s=]*)?(\d{4})", re.IGNORECASE)
_CODED = re.compile(r"(?:botocore\.(?:exceptions\.)?)?ClientError:(\w+)")
_TAGGED = re.compile(r"(grpc|kafka|aws)[\s:]+(?:StatusCode\.)?(\w+)", re.IGNORECASE)
_TAGS = frozenset({"http", "sqlstate", "errno", "mysql", "grpc", "kafka", "aws"})
_SERVICES = {"grpc": GRPC, "kafka": KAFKA, "aws": AWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and the failure it is about."""

    what: str
    """As it was asked."""
    read_as: str
    """How it was read, as text."""
    failure: object
    """What `classify` is given."""
    condition: str
    """The arguments of `Classifier.rule` for it, as code."""
    note: str | None = None
    """What else to know about the answer."""
    driver_error: str | None = None
    """Where only a code was given: a class that carries it, which decides if no rule knows the code."""


def phrases(words: Sequence[str]) -> list[str]:
    """Return the questions of a command line: `HTTP 429` is one, `429 503` are two."""
    found: list[str] = []
    for word in words:
        if found and found[-1].lower() in _TAGS:
            found[-1] = f"{found[-1]} {word}"
        else:
            found.append(word)
    return found


def is_coded(text: str) -> bool:
    """Return whether a text is an error of AWS with its code, `ClientError:SlowDown`, and not a FILE:NAME."""
    return _CODED.fullmatch(text) is not None


def read(text: str, given: FailureDetails | None = None) -> list[Question]:
    """Return what a question may mean; several, where a name is ambiguous."""
    text, given = text.strip(), given or FailureDetails()
    found = _numbered(text, given) or [*_of_services(text)] or _named(text, given)
    if not found:
        raise UnclearQuestion(_no_idea(text))
    return found


# ── numbers and codes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _numbered(text: str, given: FailureDetails) -> list[Question]:
    if found := _STATUS.fullmatch(text):
        return [_status(text, int(found[1]), given)]
    if found := _ERRNO.fullmatch(text):
        if int(found[1]) < 0:  # the numbers of the resolver: "gaierror: [Errno -2] Name or service not known"
            return [replace(one, what=text) for one in read(_RESOLVER, given)]
        return [_errno(text, int(found[1]))]
    if text.upper() in errno.errorcode.values() or text.upper() == "EWOULDBLOCK":
        return [_errno(text, getattr(errno, text.upper()))]
    if (found := _SQLSTATE.fullmatch(text)) and text.upper() not in GRPC:
        return [sqlstate(text, found[1].upper())]
    if (found := _MYSQL.fullmatch(text)) and (int(found[1]) in MYSQL or not text[0].isdigit()):
        number = int(found[1])
        condition = f"pymysql.MySQLError, when=lambda error: error.args[0] == {number}"
        return [_reading(text, f"MySQL error {number}", mysql_error(number), condition, "pymysql.IntegrityError")]
    if text.upper().startswith("SQLITE_"):
        name = text.upper()
        condition = f'sqlite3.Error, when=lambda error: getattr(error, "sqlite_errorname", "") == "{name}"'
        return [_reading(text, f"SQLite's {name}", sqlite_error(name), condition, "sqlite3.DatabaseError")]
    return []


def _reading(text: str, read_as: str, failure: object, condition: str, driver_error: str | None = None) -> Question:
    return Question(what=text, read_as=read_as, failure=failure, condition=condition, driver_error=driver_error)


def _status(text: str, status: int, given: FailureDetails) -> Question:
    if status > 599:
        raise UnclearQuestion(f"{status} is not an HTTP status: statuses are 100 to 599")
    method = "" if given.method is None else f" to a {given.method}"
    condition = f"status={status}"
    if given.body is not None and given.body:
        condition += f", body={given.body!r}"
    return _reading(text, f"HTTP status {status}{method}", FakeResponse(status, given), condition)


def _errno(text: str, number: int) -> Question:
    name = errno.errorcode.get(number)
    if name is None:
        raise UnclearQuestion(f"this system has no error number {number}; ask by the name, such as ECONNREFUSED")
    return _reading(text, f"errno {number}, {name}", OSError(number, ""), f"errno=errno.{name}")


def sqlstate(text: str, code: str) -> Question:
    """Return the question about a SQLSTATE."""
    condition = f'sqlstate="{code}"'
    return _reading(text, f"SQLSTATE {code}", DatabaseError(code), condition, "psycopg.OperationalError")


def _of_services(text: str) -> Iterator[Question]:
    """Yield the codes of gRPC, Kafka and AWS, with or without the name of the service."""
    tagged, coded = _TAGGED.fullmatch(text), _CODED.fullmatch(text)
    wanted, code = (tagged[1].lower(), tagged[2]) if tagged else ("aws", coded[1]) if coded else (None, text)
    code = code.removeprefix("StatusCode.")
    for service, table in _SERVICES.items():
        known = next((one for one in table if one.lower() == code.lower()), None)
        if wanted in (None, service) and known is not None:
            yield _of_service(text, service, known)
    if wanted is not None and not any(one.lower() == code.lower() for one in _SERVICES[wanted]):
        raise UnclearQuestion(
            f"no rule names {code!r} of {wanted}; ask for the status, or for the exception, beside it"
        )


def _of_service(text: str, service: str, code: str) -> Question:
    if service == "grpc":
        condition = f'grpc.RpcError, when=lambda error: error.code().name == "{code}"'
        return _reading(text, f"gRPC's {code}", grpc_error(code), condition)
    if service == "kafka":
        condition = f'confluent_kafka.KafkaException, when=lambda error: error.args[0].name() == "{code}"'
        return _reading(text, f"Kafka's {code}", kafka_error(code), condition)
    condition = f'botocore.exceptions.ClientError, when=lambda error: error.response["Error"]["Code"] == "{code}"'
    return _reading(text, f"{code} of AWS", aws_error(code), condition)


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _named(text: str, given: FailureDetails) -> list[Question]:
    if not exception_names.is_name(text):
        return []
    others = exception_names.known_as(text)
    if "." not in text and (cls := exception_names.builtin(text)):
        beside = [other for other in others if other != text]
        note = f"the builtin is meant; there are also {', '.join(beside)}" if beside else None
        return [of_class(text, cls, given, note)]
    if "." in text:
        cls = exception_names.find_class(text)
        return [of_class(text, cls, given)] if cls else [_absent(text, other, given) for other in others]
    found = [_installed_or_not(text, other, given) for other in others]
    return found or [_installed_or_not(text, one, given) for one in exception_names.find_everywhere(text)]


def _installed_or_not(text: str, name: str, given: FailureDetails) -> Question:
    cls = exception_names.find_class(name)
    return _absent(text, name, given) if cls is None else of_class(text, cls, given)


def of_class(text: str, cls: type[BaseException], given: FailureDetails, note: str | None = None) -> Question:
    """Return the question about an exception class, of which an instance is made without its arguments."""
    _refuse_a_signal(cls)
    if issubclass(cls, CircuitOpen) and given.retry_after is None:
        note = f"of a circuit that stays open for {format_duration(TYPICAL_COOLDOWN)}; change this with --retry-after"
    return Question(
        what=text,
        read_as=f"exception {exception_names.path_of(cls)}",
        failure=instance_of(cls, given=given),
        condition=exception_names.path_of(cls),
        note=note,
    )


def of_error(text: str, error: Exception) -> Question:
    """Return the question about an exception object."""
    _refuse_a_signal(type(error))
    path = exception_names.path_of(type(error))
    return Question(what=text, read_as=f"exception {path}", failure=error, condition=path)


def _refuse_a_signal(cls: type[BaseException]) -> None:
    if is_stop_type(cls):
        raise UnclearQuestion(f"{cls.__name__} is a signal to stop: redrive lets it pass and never classifies it")


def _absent(text: str, name: str, given: FailureDetails) -> Question:
    """Return the question about a class of a library that is not installed, known by its name alone."""
    library = name.partition(".")[0]
    note = f"{library} is not installed here; classified by the name"
    error = instance_of(class_of(name), given=given)
    return Question(what=text, read_as=f"exception {name}", failure=error, condition=name, note=note)


def _no_idea(text: str) -> str:
    shown = text if len(text) <= 60 else f"{mask_start(text, 57)}..."
    close = exception_names.near(text)
    if close:
        return f"nothing is known of {shown!r}; did you mean {_either(close)}?"
    if text.isdigit():
        others = f" or `MySQL {text}`" if _MYSQL.fullmatch(text) else ""
        return f"{shown!r} is neither an HTTP status nor a SQLSTATE; pass `errno {text}`{others} where it is that"
    if "." in text and exception_names.is_name(text) and not exception_names.is_installed(text):
        library = text.partition(".")[0]
        return f"{library!r} is not installed here, and no rule names {shown!r}; ask by its code, or its FILE.py:NAME"
    return (
        f"nothing is known of {shown!r}; ask for an exception (httpx.ReadTimeout), a status (503), a SQLSTATE (40P01), "
        "an errno (ECONNREFUSED), a FILE.py:NAME, or give a traceback on stdin"
    )


def _either(close: Iterable[str]) -> str:
    *others, last = close
    return f"{', '.join(others)} or {last}" if others else last
