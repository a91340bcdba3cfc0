"""A retry would give a function only the rest of what an attempt has read: the call is not retried."""

import asyncio
import csv
import functools
import io
import sqlite3
import tempfile
from unittest import mock

import httpx
import pytest
import requests

import redrive
from redrive.testing import Answer, FaultyServer

RETRY = redrive.Retry(attempts=3, base=0.001, cap=0.001)
ROWS = ["a", "b", "c"]


@pytest.fixture
def service():
    return redrive.Service("warehouse", retry=RETRY, breaker=None, budget=None)


class Load:
    """Writes rows; the first attempt fails at the second one."""

    def __init__(self):
        self.written = []
        self.attempts = 0

    def __call__(self, rows):
        self.attempts += 1
        for row in rows:
            if self.attempts == 1 and len(self.written) == 1:
                raise ConnectionResetError("blip")
            self.written.append(row)
        return "ok"


ONCE_ONLY = {
    "generator": lambda: (row for row in ROWS),
    "iterator": lambda: iter(ROWS),
    "map": lambda: map(str.upper, ROWS),
    "csv.reader": lambda: csv.reader(io.StringIO("\n".join(ROWS))),
    "text file": lambda: io.StringIO("\n".join(ROWS)),
    "binary file": lambda: io.BytesIO(b"a\nb\nc"),
}


class TestNotRetried:
    @pytest.mark.parametrize("make", ONCE_ONLY.values(), ids=ONCE_ONLY)
    @pytest.mark.parametrize("how", ["call", "decorator", "partial", "keyword", "retry", "list", "dict", "closure"])
    def test_error_reaches_the_caller_with_the_reason(self, service, make, how):
        load, source = Load(), make()

        def run(rows):
            return load(rows["rows"] if isinstance(rows, dict) else rows[0] if isinstance(rows, list) else rows)

        calls = {
            "call": lambda: service.call(run, source),
            "decorator": lambda: service(run)(source),
            "partial": lambda: service.call(functools.partial(run, source)),
            "keyword": lambda: service.call(run, rows=source),
            "retry": lambda: redrive.retry(base=0.001, cap=0.001)(run)(source),
            "list": lambda: service.call(run, [source]),
            "dict": lambda: service.call(run, {"rows": source}),
            "closure": lambda: service.call(lambda: load(source)),
        }
        with pytest.raises(ConnectionResetError) as failed:
            calls[how]()
        assert (load.attempts, len(load.written)) == (1, 1)
        [note] = failed.value.__notes__
        name = "the variable source" if how == "closure" else "the argument rows"
        assert f"{name} ({type(source).__name__}) can be read only once" in note
        assert "Pass what can be read again" in note

    @pytest.mark.parametrize("is_new", [True, False])
    def test_async_generator_is_retried_only_before_it_begins(self, service, is_new):
        attempts, written = [], []

        async def rows():
            for row in ROWS:
                yield row

        @service
        async def load(rows):
            attempts.append(1)
            if is_new and len(attempts) == 1:
                raise ConnectionResetError("blip")
            async for row in rows:
                if not is_new and len(written) == 1:
                    raise ConnectionResetError("blip")
                written.append(row)

        if is_new:
            asyncio.run(load(rows()))
            assert (len(attempts), written) == (2, ROWS)
        else:
            with pytest.raises(ConnectionResetError):
                asyncio.run(load(rows()))
            assert (len(attempts), written) == (1, ["a"])

    def test_file_that_the_client_has_sent(self, service):
        with FaultyServer() as server, tempfile.NamedTemporaryFile() as file:
            server.on("/backup", Answer(503), Answer(200))
            file.write(b"x" * 10_000)
            file.seek(0)

            @service
            def upload(file):
                return requests.put(server.url + "/backup", data=file, timeout=30)

            with pytest.raises(redrive.RetriesExhausted, match=r"argument file \(_TemporaryFileWrapper\)"):
                upload(file)
            assert [len(request.body) for request in server.requests] == [10_000]


def unwrapped(function):
    return lambda *args: function(*args)


def with_keyword_default(load, source):
    def run(*, source=source):
        return load(source)

    return run


def with_helper(load, source):
    def batch():
        return load(source)

    def send():
        return batch()

    return send


def with_guarded(load, source):
    @redrive.Service("inner", retry=None, breaker=None)
    def inner():
        return load(source)

    return lambda: inner()


HOLDERS = {
    "default of a lambda": lambda load, source: lambda source=source: load(source),
    "keyword-only default": with_keyword_default,
    "closure that calls a closure": with_helper,
    "decorator without wraps": lambda load, source: unwrapped(lambda: load(source)),
    "inner guarded function": with_guarded,
    "argument that is a lambda": lambda load, source: functools.partial(lambda fn: fn(), lambda: load(source)),
    "argument that is a partial": lambda load, source: functools.partial(
        lambda fn: fn(), functools.partial(load, source)
    ),
    "argument that is a bound method": lambda load, source: functools.partial(
        lambda read: load(iter(read().splitlines())), source.read
    ),
}


class TestHeldByFunctions:
    @pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
    def test_error_reaches_the_caller(self, service, hold):
        load, source = Load(), io.StringIO("a\nb\nc")
        with pytest.raises(ConnectionResetError) as failed:
            service.call(hold(load.__call__, source))
        assert (load.attempts, len(load.written)) == (1, 1)
        assert "(StringIO) can be read only once" in failed.value.__notes__[-1]

    def test_default_that_is_not_used_is_retried(self, service):
        load, unused = Load(), io.StringIO("a")
        unused.read()
        assert service.call(lambda source=unused: load(source), ROWS) == "ok"

    def test_helper_that_rewinds_is_retried(self, service):
        load, source = Load(), io.StringIO("a\nb\nc")

        def rewound():
            source.seek(0)
            return load(source)

        assert service.call(lambda: rewound()) == "ok"

    def test_helper_that_takes_item_by_item_is_retried(self, service):
        answers = iter([ConnectionResetError("blip"), "ok"])

        def take():
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        assert service.call(lambda: take()) == "ok"

    def test_fallback_applies(self, service):
        load = Load()
        assert service.with_options(fallback="later").call(load, iter(ROWS)) == "later"
        assert load.attempts == 1


class TestRetried:
    def run(self, service, function, *args):
        """Call a function that fails once, after it has used its arguments."""
        attempts = []

        def once(*args):
            attempts.append(1)
            result = function(*args)
            if len(attempts) == 1:
                raise ConnectionResetError("blip")
            return result

        return service.call(once, *args)

    def test_generator_and_file_that_were_not_read(self, service):
        rows, file = (row for row in ROWS), io.BytesIO(b"abc")
        self.run(service, lambda rows, file: None, rows, file)
        assert (list(rows), file.read()) == (ROWS, b"abc")

    @pytest.mark.parametrize("make", [lambda: ROWS, lambda: range(3), lambda: {"a": 1}, lambda: b"abc", lambda: "abc"])
    def test_argument_that_can_be_read_again(self, service, make):
        assert self.run(service, list, make()) == list(make())

    def test_file_that_the_function_rewinds(self, service):
        attempts = []

        @service
        def upload(file):
            file.seek(0)
            attempts.append(file.read())
            if len(attempts) == 1:
                raise ConnectionResetError("blip")

        upload(io.BytesIO(b"abc"))
        assert attempts == [b"abc", b"abc"]

    def test_file_that_is_written_to(self, service, tmp_path):
        with open(tmp_path / "log", "w") as log:
            self.run(service, lambda log: log.write("x"), log)

    def test_cursor_client_and_mock(self, service):
        with sqlite3.connect(":memory:") as connection:
            cursor = connection.cursor()
            assert self.run(service, lambda cursor: list(cursor.execute("VALUES (1)")), cursor) == [(1,)]
        with httpx.Client() as client:
            self.run(service, lambda *_: None, client, mock.Mock(), mock.MagicMock())

    def test_closure_that_takes_item_by_item(self, service):
        answers = iter([ConnectionResetError("blip"), "ok"])

        @service
        def fetch():
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        assert fetch() == "ok"

    def test_attempt_that_was_never_made(self):
        fetched = []

        def fetch():
            fetched.append(1)
            if len(fetched) == 1:
                raise ConnectionResetError("blip")
            return "token-1234-5678"

        service = redrive.Service("warehouse", retry=RETRY, breaker=None, credentials=redrive.Token(fetch))

        def load(rows, *, credential):
            return list(rows)

        assert service.call(load, iter(ROWS)) == ROWS
