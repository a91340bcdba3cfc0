"""Causes of failures: the type and the line, not the message; and what is stored of an error."""

from __future__ import annotations

import importlib.util
import json
import traceback

import pytest

import redrive
from redrive.tasks.workers.fingerprint import (
    ERROR_LENGTH,
    TRACE_LENGTH,
    fingerprint,
    one_line,
    trace_of,
    with_status,
)


class Own(Exception):
    pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def caught(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def divided(number):
    try:
        return 1 / number
    except ZeroDivisionError as caught:
        return caught


def test_same_type_at_the_same_line_is_one_cause():
    assert fingerprint(raised(ValueError("order 17"))) == fingerprint(raised(ValueError("order 18")))


def test_another_type_or_another_line_is_another_cause():
    causes = {fingerprint(raised(ValueError())), fingerprint(raised(KeyError())), fingerprint(divided(0))}
    assert len(causes) == 3


def test_cause_has_type_module_and_line_of_the_innermost_frame():
    error = raised(Own("x"))
    line = traceback.extract_tb(error.__traceback__)[-1].lineno
    assert fingerprint(error) == f"{__name__}.Own@{__name__}:{line}"
    assert fingerprint(divided(0)).startswith(f"ZeroDivisionError@{__name__}:")


def test_cause_does_not_depend_on_the_path_of_the_file(tmp_path):
    causes = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "jobs.py"
        path.write_text("def work():\n    raise ValueError('x')\n")
        for run_as in ("jobs", "__main__", "__mp_main__"):
            spec = importlib.util.spec_from_file_location(run_as, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            with pytest.raises(ValueError) as caught:
                module.work()
            causes.add(fingerprint(caught.value))
    assert causes == {"ValueError@jobs:2"}


def installed(directory, name, source):
    """A module as pip leaves it."""
    path = directory / "site-packages" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestLibraries:
    def test_cause_is_the_users_line_not_the_librarys(self, tmp_path):
        client = installed(tmp_path, "client", "def get():\n    raise ValueError('x')\n")

        def first():
            client.get()

        def second():
            client.get()

        causes = {fingerprint(caught(first)), fingerprint(caught(second)), fingerprint(caught(lambda: json.loads("{")))}
        assert len(causes) == 3
        assert all(f"@{__name__}:" in cause for cause in causes)

    def test_innermost_line_counts_without_a_line_of_the_user(self, tmp_path):
        client = installed(tmp_path, "client", "def get():\n    raise ValueError('x')\n")
        assert fingerprint(caught(client.get), skip=__file__) == "ValueError@client:2"

    def test_installed_package_of_the_task_is_the_users(self, tmp_path):
        jobs = installed(tmp_path, "jobs", "import json\ndef work():\n    json.loads('{')\n")
        assert fingerprint(caught(jobs.work), home="jobs.settlement") == "json.decoder.JSONDecodeError@jobs:3"

    def test_redrive_itself_is_a_library(self):
        def task():
            return redrive.Retry(attempts=0)

        assert f"@{__name__}:" in fingerprint(caught(task))

    def test_status_of_a_response_is_part_of_the_cause(self):
        assert with_status("httpx.HTTPStatusError@jobs:7", 404) == "httpx.HTTPStatusError(404)@jobs:7"
        assert with_status("httpx.HTTPStatusError@jobs:7", None) == "httpx.HTTPStatusError@jobs:7"


def test_frames_of_the_caller_do_not_count():
    error = raised(ValueError("x"))
    assert fingerprint(error, skip=__file__) == "ValueError"
    assert fingerprint(ValueError("never raised")) == "ValueError"


def test_error_is_one_line_without_secrets():
    assert one_line(ValueError("could not\n  convert 'N/A'")) == "ValueError: could not convert 'N/A'"
    assert "hunter2" not in one_line(ValueError("password=hunter2 was refused"))
    assert one_line(ValueError()) == "ValueError"
    assert one_line(Mute()) == "Mute"


def test_error_of_any_length_is_cut():
    assert len(one_line(ValueError("x" * 1_000_000))) == ERROR_LENGTH


def test_characters_invalid_in_a_database_are_escaped():
    assert one_line(ValueError("a\0b\udc80")) == r"ValueError: a\x00b\udc80"
    assert "\0" not in trace_of(raised(ValueError("a\0b\udc80")))


def test_traceback_has_its_innermost_frames():
    def deep(level):
        if level:
            deep_again(level - 1)
        raise ValueError("at the bottom" + "!" * 20_000)

    def deep_again(level):
        deep(level)

    with pytest.raises(ValueError) as caught:
        deep(300)
    trace = trace_of(caught.value)
    assert len(trace) < TRACE_LENGTH + 100
    assert trace.startswith("… ")

    with pytest.raises(RecursionError) as caught:
        deep(100_000)
    assert "RecursionError" in trace_of(caught.value)


def test_traceback_shows_no_secrets():
    assert "hunter2" not in trace_of(raised(ValueError("password=hunter2")))


def test_error_of_raise_for_status_has_the_server_message():
    import httpx

    refused = httpx.Response(422, json={"detail": "fee: not a number"}, request=httpx.Request("GET", "https://bank"))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        refused.raise_for_status()
    assert one_line(caught.value).endswith("(fee: not a number)")
