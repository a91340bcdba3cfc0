"""The codes that exceptions carry: an HTTP response, a SQLSTATE, an errno, a driver's or a service's own code."""

from __future__ import annotations

from typing import Any

from redrive.classify.responses import Answer, attribute, body_in_memory, headers_of, read_response, status_of
from redrive.classify.type_names import libraries, type_names

_MYSQL_DRIVERS = frozenset({"MySQLdb", "aiomysql", "asyncmy", "mysql", "pymysql"})

# Raised for any status but success, redirects included; a redirect on another error is not the cause of that error.
_RAISED_FOR_STATUS = frozenset({"httpx.HTTPStatusError", "urllib.HTTPError"})

# OSErrors whose numbers are not the operating system's.
_OWN_NUMBERS = frozenset({"socket.gaierror", "socket.herror", "ssl.SSLError"})


def http_answer(error: BaseException) -> Answer | None:
    """Return the response an exception carries or is; None unless that response is what went wrong."""
    response = attribute(error, "response")
    answer = _aws_answer(response) if isinstance(response, dict) else read_response(response)
    if answer is None:
        answer = _answer_of_error(error)
    if answer is None or (answer.status < 400 and _RAISED_FOR_STATUS.isdisjoint(type_names(type(error)))):
        return None
    return answer


def aws_code(error: BaseException) -> str | None:
    """Return `Error.Code` of botocore's ClientError."""
    response = attribute(error, "response")
    problem = response.get("Error") if isinstance(response, dict) else None
    code = problem.get("Code") if isinstance(problem, dict) else None
    return code if isinstance(code, str) and "botocore" in libraries(type(error)) else None


def aws_message(error: BaseException) -> str:
    text = attribute(error, "response")["Error"].get("Message")
    return text if isinstance(text, str) else ""


def sqlstate(error: BaseException) -> str | None:
    """Return the five characters of a SQLSTATE; psycopg2 names it `pgcode`, pyodbc has it as the first argument."""
    codes = [attribute(error, "sqlstate"), attribute(error, "pgcode")]
    if "pyodbc" in libraries(type(error)):
        codes += error.args[:1]
    for code in codes:
        if isinstance(code, str) and len(code) == 5 and code.isascii() and code.isalnum():
            return code.upper()
    return None


def os_errno(error: BaseException) -> int | None:
    """Return the operating system's number of an OSError."""
    if not isinstance(error, OSError) or not _OWN_NUMBERS.isdisjoint(type_names(type(error))):
        return None
    number: object = attribute(error, "errno")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def sqlite_code(error: BaseException) -> int | None:
    """Return SQLite's extended result code."""
    code = attribute(error, "sqlite_errorcode")
    return code if isinstance(code, int) else None


def mysql_code(error: BaseException) -> int | None:
    """Return the error number of a MySQL driver: its `errno`, or the first argument."""
    if _MYSQL_DRIVERS.isdisjoint(libraries(type(error))):
        return None
    for code in (attribute(error, "errno"), *error.args[:1]):
        if isinstance(code, int) and not isinstance(code, bool):
            return code
    return None


def kafka_error(failure: object) -> Any:
    """Return confluent-kafka's KafkaError, which is no exception, or the one a KafkaException carries."""
    if "confluent_kafka.KafkaError" in type_names(type(failure)):
        return failure
    if isinstance(failure, BaseException) and "confluent_kafka.KafkaException" in type_names(type(failure)):
        return next((kafka_error(argument) for argument in failure.args[:1]), None)
    return None


def grpc_code(error: BaseException) -> str | None:
    """Return the name of the gRPC status, such as UNAVAILABLE."""
    if "grpc.RpcError" not in type_names(type(error)):
        return None
    name = attribute(call_or_none(error, "code"), "name")
    return name if isinstance(name, str) else None


def call_or_none(value: object, method: str) -> Any:
    """Call a method without arguments and return its result; None where the method is missing or fails."""
    function = attribute(value, method)
    try:
        return function() if callable(function) else None
    except Exception:
        return None


def _aws_answer(response: dict[str, Any]) -> Answer | None:
    metadata = response.get("ResponseMetadata")
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(status, int):
        return None
    return Answer(status, metadata.get("HTTPHeaders"))


def _answer_of_error(error: BaseException) -> Answer | None:
    """Return the response that an exception itself is: aiohttp's, urllib's, those of many API clients."""
    known = libraries(type(error))
    status = status_of(error)
    if status is None and known & {"aiohttp", "urllib"}:
        # aiohttp may lack headers.
        status = attribute(error, "status")
    if not isinstance(status, int) or status < 100:
        return None
    body = body_in_memory(error)
    if body is None and "urllib" in known:
        body = _peek(attribute(error, "fp"))
    if body is None and isinstance(content := attribute(error, "body"), str | bytes):
        body = content if isinstance(content, str) else content.decode("utf-8", "replace")
    if body is None and isinstance(content := attribute(error, "data"), dict):
        body = str(content)  # PyGithub keeps what it has parsed
    return Answer(status, headers_of(error), body)


def _peek(stream: object) -> str | None:
    """Return what a stream holds in its buffer; the bytes stay there for the caller to read.

    Where the buffer is empty, `peek` waits for one packet, within the timeout the caller gave the request.
    """
    try:
        in_memory, peek = attribute(stream, "getvalue"), attribute(stream, "peek")
        if callable(in_memory):
            buffered = in_memory()[attribute(stream, "tell")() :]
        elif callable(peek):
            buffered = peek(65_536)
        else:
            return None
    except Exception:
        # The stream is closed, or the connection broke.
        return None
    return buffered.decode("utf-8", "replace") if isinstance(buffered, bytes) else None
