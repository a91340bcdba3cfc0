"""Effects other than HTTP requests in the frames of an error: commits, statements in autocommit mode, mails.

The connection was lost, or a time limit ended the wait, when the server had all it needs: it may have acted.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from types import FrameType
from typing import Any

from redrive.calls.effects.in_flight import frames_of_error, place_of
from redrive.calls.effects.request import KnownRequest
from redrive.classify.error_codes import call_or_none
from redrive.classify.responses import attribute
from redrive.classify.type_names import libraries

COMMIT, STATEMENT, PIPELINE, MAIL = "COMMIT", "statement in autocommit mode", "pipeline of statements", "mail"
EFFECTS = frozenset({COMMIT, STATEMENT, PIPELINE, MAIL})

# They retry their transactions themselves, and know what may be done twice.
_OWN = ("redrive.alerts.", "redrive.dlq.", "redrive.rows.", "redrive.store.", "redrive.tasks.")
_SQLALCHEMY_COMMITS = frozenset({"_commit_impl", "_commit_twophase_impl"})
_EXECUTES = frozenset({"execute", "executemany", "stream"})
# Statements that leave nothing behind once their transaction or connection is gone.
_READS = frozenset({"CLOSE", "DECLARE", "FETCH", "LISTEN", "MOVE", "RESET", "SELECT", "SET", "SHOW", "TABLE", "VALUES"})
_STARTS = frozenset({"ABORT", "BEGIN", "ROLLBACK", "SAVEPOINT", "START"})
_COMMITS = frozenset({"COMMIT", "END"})
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*\*/)*+([A-Za-z]*)")
_WRITES = re.compile(r"\b(?:INTO|INSERT|UPDATE|DELETE|MERGE|CALL)\b", re.IGNORECASE)
# Connection exceptions, a server that shuts down or crashes, and "statement completion unknown": all else is an answer.
_UNANSWERED = ("08", "57P", "40003")
_COPY_IN = 4  # of libpq
_IN_PROCESS = frozenset({"aiosqlite", "duckdb", "sqlite3"})
_MYSQL = frozenset({"MySQLdb", "asyncmy", "mysql", "pymysql"})
_MYSQL_SHUTDOWN = 1053


def effects_in(error: BaseException, wrapped: Container[int] = ()) -> Iterator[KnownRequest]:
    """Yield what the code that an error has passed was doing, and what may have taken effect.

    Args:
        error: the error.
        wrapped: ids of errors that another one wraps and describes.
    """
    frames = list(frames_of_error(error))
    names = [str(frame.f_globals.get("__name__")) for frame in frames]
    if id(error) in wrapped or any(name.startswith(_OWN) for name in names) or _is_answer(error):
        return
    effects = (_FINDERS.get(place_of(frame)[0], _nothing)(frame) for frame in frames)
    effect = next((each for each in effects if each is not None), None) or _of_psycopg_pipeline(frames)
    if effect is not None:
        yield KnownRequest(effect, {})


def _nothing(_: FrameType) -> None:
    return None


def _of_psycopg(frame: FrameType) -> str | None:
    function, known = frame.f_code.co_name, frame.f_locals
    module, owner = str(frame.f_globals.get("__name__")), known.get("self")
    if function in ("commit", "_commit_gen") and "transaction" not in module:
        return COMMIT
    if function == "_exec_command":
        return COMMIT if b"COMMIT" in _bytes(known.get("command")) else None
    if function in ("__exit__", "__aexit__") and module.startswith("psycopg.transaction"):
        return COMMIT if known.get("exc_type") is None and attribute(owner, "_outer_transaction") else None
    if function == "_fetch_pipeline" or module.startswith("psycopg._pipeline"):
        # What is sent by a pipeline takes effect before its answer is read; to enter the outermost one sends nothing.
        is_first = function in ("__enter__", "__aenter__") and attribute(owner, "level") == 0
        return None if is_first else PIPELINE
    commits_at_once = _commits_at_once(frame)
    if function == "copy" and commits_at_once:
        return STATEMENT if attribute(known.get("copy"), "_direction") == _COPY_IN else None
    if function not in _EXECUTES or "query" not in known:
        return None
    if "cur" in frame.f_code.co_varnames and "cur" not in known:
        return None  # the connection was closed before
    return _of_statement(_text(known["query"]), commits_at_once=commits_at_once)


def _of_psycopg_pipeline(frames: list[FrameType]) -> str | None:
    """Return a pipeline where a read in it was lost: the statements before it may have no answer either.

    The pipeline has ended by now, and only the code that has opened it names it.
    """
    if not any("pipeline" in frame.f_code.co_names for frame in frames):
        return None
    is_lost = any(
        place_of(frame)[0] == "psycopg" and frame.f_code.co_name in _EXECUTES and _commits_at_once(frame)
        for frame in frames
    )
    return PIPELINE if is_lost else None


def _commits_at_once(frame: FrameType) -> bool:
    """Return whether the connection of psycopg that a frame works on is in autocommit mode."""
    owner = frame.f_locals.get("self")
    return attribute(attribute(owner, "connection") or owner, "autocommit") is True


def _of_statement(text: str | None, *, commits_at_once: bool) -> str | None:
    if text is None:
        return STATEMENT if commits_at_once else None
    statements = [part for part in text.split(";") if part.strip()]
    words = [_first_word(statement) for statement in statements]
    if not _COMMITS.isdisjoint(words):
        return COMMIT
    is_read = all(map(_is_read, statements, words))
    return STATEMENT if commits_at_once and not is_read else None


def _first_word(statement: str) -> str:
    found = _FIRST_WORD.match(statement)
    return "" if found is None else found[1].upper()


def _is_read(statement: str, word: str) -> bool:
    if word in ("SELECT", "WITH"):
        # `FOR UPDATE` writes nothing.
        return not any(word == "WITH" or found[0].upper() == "INTO" for found in _WRITES.finditer(statement))
    return word in _READS or word in _STARTS


def _text(query: Any) -> str | None:
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    if isinstance(query, str):
        return query
    composed = call_or_none(query, "as_string")
    return composed if isinstance(composed, str) else None


def _bytes(command: Any) -> bytes:
    return command if isinstance(command, bytes) else str(command).encode()


def _of_sqlalchemy(frame: FrameType) -> str | None:
    return COMMIT if frame.f_code.co_name in _SQLALCHEMY_COMMITS else None


def _of_asyncpg(frame: FrameType) -> str | None:
    is_commit = frame.f_code.co_name == "__commit" and frame.f_locals.get("query") == "COMMIT;"
    return COMMIT if is_commit else None


def _of_smtplib(frame: FrameType) -> str | None:
    function, known = frame.f_code.co_name, frame.f_locals
    if function == "data":
        return MAIL if "q" in known else None  # the text as it is sent
    # The end of a session without an error: what it has sent would be sent again.
    return MAIL if function == "__exit__" and (known.get("args") or (None,))[0] is None else None


_FINDERS = {
    "asyncpg": _of_asyncpg,
    "psycopg": _of_psycopg,
    "smtplib": _of_smtplib,
    "sqlalchemy": _of_sqlalchemy,
}


def _is_answer(error: BaseException) -> bool:
    """Return whether the error is the answer of a database that has not committed."""
    if "sqlalchemy" in libraries(type(error)) and isinstance(own := attribute(error, "orig"), BaseException):
        return attribute(error, "connection_invalidated") is not True and _is_answer(own)
    state = attribute(error, "sqlstate") or attribute(error, "pgcode")
    if isinstance(state, str):
        return not state.startswith(_UNANSWERED)
    known = libraries(type(error))
    if known & _MYSQL:
        code = error.args[0] if error.args else None
        return isinstance(code, int) and code >= 1_000 and not 2_000 <= code < 3_000 and code != _MYSQL_SHUTDOWN
    return bool(known & _IN_PROCESS)
