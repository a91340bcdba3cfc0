"""Failures made for the sake of the question: an answer nobody sent, an error nobody raised.

`classify` knows foreign classes by their names, so that one of the same name will do where the library is not there.
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
"""How long an open circuit has still to go, where nobody says."""

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
    """The request behind a failure, as far as anybody asks about it."""

    method: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """What else is known about a failure."""

    method: str | None = None
    retry_after: str | None = None
    body: str | None = None

    @property
    def patience(self) -> float | None:
        """Seconds that the other side asks for."""
        return None if self.retry_after is None else parse_retry_after(self.retry_after, datetime.now(UTC))


class FakeResponse(addinfourl):
    """A response of the standard library's, with a body that was read."""

    def __init__(self, status: int, given: FailureDetails) -> None:
        headers = Message()
        if given.retry_after is not None:
            headers["Retry-After"] = given.retry_after
        super().__init__(BytesIO(), headers, "", status)
        self._content = given.body or ""
        if given.method is not None:
            self.request = FakeRequest(given.method)


def class_of(name: str) -> type[Exception]:
    """A class of that name, `library.Class`, with nothing in it; the real one where the program has it loaded."""
    module, _, bare = name.rpartition(".")
    real = getattr(sys.modules.get(module), bare, None)
    if isinstance(real, type) and issubclass(real, Exception):
        return real
    return type(bare, (Exception,), {"__module__": module or "builtins", "__qualname__": bare})


def instance_of(cls: type[BaseException], message: str = "", given: FailureDetails | None = None) -> BaseException:
    """An exception of a class, whatever its `__init__` asks for: none but redrive's own is called."""
    try:
        # pydantic makes its errors by a method of its own.
        make = getattr(cls, "from_exception_data", None)
        error = make(message, []) if callable(make) else cls.__new__(cls)
    except Exception:  # some classes can only be made by the library itself
        error = _named_like(cls)
    _put_sqlstate(error)
    if message:
        put(error, args=(message,))
    _begin_ours(error, message, None if given is None else given.patience)
    if given is not None and given.method is not None:
        put(error, request=FakeRequest(given.method))
    return error


def _put_sqlstate(error: BaseException) -> None:
    """psycopg2 gives its errors their SQLSTATE when it raises them, where others have it in the class."""
    states: dict[str, type] = getattr(sys.modules.get("psycopg2._psycopg"), "sqlstate_errors", {})
    code = next((state for state, of in states.items() if of is type(error)), None)
    if code is not None:
        error.__setstate__({"pgcode": code})  # the attribute cannot be set


def _begin_ours(error: BaseException, message: str, patience: float | None) -> None:
    """An error of redrive's, or one derived from it, has what its verdict is made of from redrive's own class."""
    ours: Any = next((cls for cls in type(error).__mro__ if cls.__module__ == RedriveError.__module__), None)
    if ours is None:
        return
    if isinstance(error, StatedVerdict) and not hasattr(error, "kind"):
        raise UnclearQuestion(
            f"{type(error).__name__} states no kind, and is never raised itself; ask for redrive.Transient …"
        )
    ours.__init__(error, message)
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
    """Set attributes, as far as the class lets them be set."""
    for name, value in values.items():
        try:
            setattr(error, name, value)
        except Exception:  # a class may refuse; it is explained without
            continue


# ── by code ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class DatabaseError(Exception):
    """Stands for the error of any driver that carries a SQLSTATE."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__()
        self.sqlstate = sqlstate


def mysql_error(number: int, said: str = "", cls: type[BaseException] | None = None) -> Exception:
    """As the MySQL drivers raise it."""
    return _made_of(cls or _class_for(number), args=(number, said))


def _class_for(number: int) -> type[BaseException]:
    """The class that PyMySQL raises for an error number; its own by default, where PyMySQL is loaded."""
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
    """As sqlite3 raises it: SQLITE_BUSY, SQLITE_CONSTRAINT_UNIQUE …"""
    import sqlite3

    code = getattr(sqlite3, name, None)
    if not isinstance(code, int):
        raise UnclearQuestion(f"{name} is no result code of SQLite; they are such as SQLITE_BUSY")
    primary = "_".join(name.split("_")[:2])
    cls = cls or getattr(sqlite3, _SQLITE_CLASSES.get(primary, "OperationalError"))
    return _made_of(cls, args=(message,), sqlite_errorcode=code, sqlite_errorname=name)


def grpc_error(status: str, details: str = "", cls: type[BaseException] | None = None) -> Exception:
    """As a call of gRPC raises it."""
    base = cls or class_of("grpc.RpcError")
    told = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    answers = {"code": lambda _: _Named(status), "details": lambda _: details}
    return _made_of(type(base.__name__, (base,), {**told, **answers}))


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


def kafka_error(name: str, said: str = "", cls: type[BaseException] | None = None) -> Exception:
    """As confluent-kafka raises it."""
    told = {"name": name, "str": said, "retriable": False, "fatal": False}
    body: dict[str, Any] = {method: _telling(value) for method, value in told.items()}
    reason = type("KafkaError", (), {"__module__": "confluent_kafka", **body})()
    return _made_of(cls or class_of("confluent_kafka.KafkaException"), args=(reason,))


def _telling(value: object) -> Any:
    return lambda _: value


def aws_error(code: str, message: str = "", cls: type[BaseException] | None = None) -> Exception:
    """As botocore raises it."""
    made = class_of("botocore.exceptions.ClientError")
    if cls is not None and not issubclass(cls, made):
        # botocore makes a class for each error of a service, `botocore.errorfactory.NoSuchKey`: nothing has it by name.
        cls = type(cls.__name__, (made,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
    return _made_of(cls or made, response={"Error": {"Code": code, "Message": message}})
