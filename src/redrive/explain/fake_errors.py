"""Failures made for a question: responses that no server sent, errors that no code raised.

`classify` knows foreign classes by their names, so a class of the same name is enough where the library is missing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from io import BytesIO
from typing import Any
from urllib.response import addinfourl

from redrive.calls.failures import CIRCUIT_OPEN
from redrive.classify.responses import parse_retry_after
from redrive.errors import CircuitOpen, RedriveError, StatedVerdict
from redrive.explain import UnclearQuestion
from redrive.model.calls import Failure, Kind, Verdict
from redrive.policy.breaker import Breaker

TYPICAL_COOLDOWN = Breaker().cooldown
"""How long an open circuit stays open, by default."""

_OPEN_ELSEWHERE = Failure(
    service="another service",
    endpoint="another service",
    attempts=(),
    elapsed=0.0,
    verdict=Verdict(Kind.TRANSIENT, "the circuit is open", "circuit_open"),
    why="the circuit is open",
    advice=CIRCUIT_OPEN,
)


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """The request behind a failure: its method and headers."""

    method: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """What else is known about a failure."""

    method: str | None = None
    retry_after: str | None = None
    body: str | None = None

    @property
    def requested_wait(self) -> float | None:
        """Seconds that the server asks to wait."""
        return None if self.retry_after is None else parse_retry_after(self.retry_after, datetime.now(UTC))


class FakeResponse(addinfourl):
    """A response of the standard library, with a body that was read."""

    def __init__(self, status: int, given: FailureDetails) -> None:
        headers = Message()
        if given.retry_after is not None:
            headers["Retry-After"] = given.retry_after
        super().__init__(BytesIO(), headers, "", status)
        self._content = given.body or ""
        if given.method is not None:
            self.request = FakeRequest(given.method)


def class_of(name: str) -> type[Exception]:
    """Return an empty class of that name, `library.Class`; the real one where the program has loaded it."""
    module, _, bare = name.rpartition(".")
    real = getattr(sys.modules.get(module), bare, None)
    if isinstance(real, type) and issubclass(real, Exception):
        return real
    return type(bare, (Exception,), {"__module__": module or "builtins", "__qualname__": bare})


def instance_of(cls: type[BaseException], message: str = "", given: FailureDetails | None = None) -> BaseException:
    """Return an exception of a class, whatever its `__init__` requires: only redrive's own are called."""
    try:
        # pydantic makes its errors by a method of its own.
        make = getattr(cls, "from_exception_data", None)
        error = make(message, []) if callable(make) else cls.__new__(cls)
    except Exception:  # some classes can only be made by the library itself
        error = _named_like(cls)
    _put_sqlstate(error)
    if message:
        put(error, args=(message,))
    _init_redrive_error(error, message, None if given is None else given.requested_wait)
    if given is not None and given.method is not None:
        put(error, request=FakeRequest(given.method))
    return error


def _put_sqlstate(error: BaseException) -> None:
    """Set the SQLSTATE of an error of psycopg2, which sets it when it raises; other drivers have it in the class."""
    states: dict[str, type] = getattr(sys.modules.get("psycopg2._psycopg"), "sqlstate_errors", {})
    code = next((state for state, of in states.items() if of is type(error)), None)
    if code is not None:
        error.__setstate__({"pgcode": code})  # the attribute cannot be set


def _init_redrive_error(error: BaseException, message: str, patience: float | None) -> None:
    """Initialize an error of redrive, or one derived from it: the verdict is made of its attributes."""
    redrive_class: Any = next((cls for cls in type(error).__mro__ if cls.__module__ == RedriveError.__module__), None)
    if redrive_class is None:
        return
    if isinstance(error, StatedVerdict) and not hasattr(error, "kind"):
        raise UnclearQuestion(
            f"{type(error).__name__} states no kind, and is never raised itself; ask for redrive.Transient …"
        )
    redrive_class.__init__(error, message)
    if isinstance(error, CircuitOpen):
        error.retry_in = TYPICAL_COOLDOWN if patience is None else patience
        error.redrive = _OPEN_ELSEWHERE
    elif isinstance(error, StatedVerdict):
        error.retry_after = patience


def _named_like(cls: type[BaseException]) -> Exception:
    copied = type(cls.__name__, (Exception,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
    made: Exception = copied()
    return made


def put(error: BaseException, **values: Any) -> None:
    """Set attributes, as far as the class allows it."""
    for name, value in values.items():
        try:
            setattr(error, name, value)
        except Exception:  # a class may not allow it; the error is explained without
            continue


# ── by code ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class DatabaseError(Exception):
    """Represents the error of any driver that carries a SQLSTATE."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__()
        self.sqlstate = sqlstate


def mysql_error(number: int, message: str = "", cls: type[BaseException] | None = None) -> Exception:
    """Return an error as the MySQL drivers raise it."""
    return _made_of(cls or _class_for(number), args=(number, message))


def _class_for(number: int) -> type[BaseException]:
    """Return the class that PyMySQL raises for an error number; its own table decides where it is loaded."""
    known = getattr(sys.modules.get("pymysql.err"), "error_map", {})
    return known.get(number) or class_of(f"pymysql.err.{'InternalError' if 0 < number < 1000 else 'OperationalError'}")


def _made_of(cls: type[BaseException], **values: Any) -> Exception:
    error = instance_of(cls)
    put(error, **values)
    assert isinstance(error, Exception)
    return error


# By the primary result code, as the module of the standard library chooses the class; all others: OperationalError.
_SQLITE_CLASSES = {
    "SQLITE_CONSTRAINT": "IntegrityError",
    "SQLITE_MISMATCH": "IntegrityError",
    "SQLITE_INTERNAL": "InternalError",
    "SQLITE_NOTFOUND": "InternalError",
    "SQLITE_TOOBIG": "DataError",
    "SQLITE_MISUSE": "InterfaceError",
    "SQLITE_RANGE": "InterfaceError",
    "SQLITE_CORRUPT": "DatabaseError",
    "SQLITE_NOTADB": "DatabaseError",
    "SQLITE_FORMAT": "DatabaseError",
    "SQLITE_AUTH": "DatabaseError",
    "SQLITE_NOLFS": "DatabaseError",
}


def sqlite_error(name: str, message: str = "", cls: type[BaseException] | None = None) -> Exception:
    """Return an error as sqlite3 raises it: SQLITE_BUSY, SQLITE_CONSTRAINT_UNIQUE …"""
    import sqlite3

    code = getattr(sqlite3, name, None)
    if not isinstance(code, int):
        raise UnclearQuestion(f"{name} is not a result code of SQLite, such as SQLITE_BUSY")
    primary = "_".join(name.split("_")[:2])
    cls = cls or getattr(sqlite3, _SQLITE_CLASSES.get(primary, "OperationalError"))
    return _made_of(cls, args=(message,), sqlite_errorcode=code, sqlite_errorname=name)


def grpc_error(status: str, details: str = "", cls: type[BaseException] | None = None) -> Exception:
    """Return an error as a call of gRPC raises it."""
    base = cls or class_of("grpc.RpcError")
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    answers = {"code": lambda _: _Named(status), "details": lambda _: details}
    return _made_of(type(base.__name__, (base,), {**names, **answers}))


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


def kafka_error(name: str, message: str = "", cls: type[BaseException] | None = None) -> Exception:
    """Return an error as confluent-kafka raises it."""
    values = {"name": name, "str": message, "retriable": False, "fatal": False}
    body: dict[str, Any] = {method: _returning(value) for method, value in values.items()}
    reason = type("KafkaError", (), {"__module__": "confluent_kafka", **body})()
    return _made_of(cls or class_of("confluent_kafka.KafkaException"), args=(reason,))


def _returning(value: object) -> Any:
    return lambda _: value


def aws_error(code: str, message: str = "", cls: type[BaseException] | None = None) -> Exception:
    """Return an error as botocore raises it."""
    made = class_of("botocore.exceptions.ClientError")
    if cls is not None and not issubclass(cls, made):
        # botocore makes a class for each error of a service, `botocore.errorfactory.NoSuchKey`: nothing has it by name.
        cls = type(cls.__name__, (made,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
    return _made_of(cls or made, response={"Error": {"Code": code, "Message": message}})
