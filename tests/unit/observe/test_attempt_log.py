"""The attempt log as a file: one complete line of JSON per attempt, with several writers."""

import json
import logging
import multiprocessing

import pytest

import redrive
from redrive.observe.log import attempt_log

ATTEMPTS = logging.getLogger("redrive.attempts")


@pytest.fixture
def log(tmp_path):
    """The file's path; it is written for as long as the test runs."""
    handler, before = attempt_log(tmp_path / "attempts.jsonl"), ATTEMPTS.level
    ATTEMPTS.addHandler(handler)
    ATTEMPTS.setLevel(logging.INFO)
    yield tmp_path / "attempts.jsonl"
    ATTEMPTS.setLevel(before)
    ATTEMPTS.removeHandler(handler)
    handler.close()


def fail():
    raise TimeoutError


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_attempt_is_one_line_with_all_known_facts(log):
    bank = redrive.Service("bank", retry=redrive.Retry(attempts=2, base=0.001, cap=0.001))

    bank.call(len, "fine")
    with pytest.raises(TimeoutError):
        bank.call(fail)
    assert [(one["service"], one["endpoint"], one["attempt"], one["outcome"], one["error"]) for one in lines(log)] == [
        ("bank", "len", 1, "success", None),
        ("bank", "fail", 1, "transient", "TimeoutError"),
        ("bank", "fail", 2, "transient", "TimeoutError"),
    ]


def test_log_is_appended_to_an_existing_file(log, tmp_path):
    bank = redrive.Service("bank")
    bank.call(len, "fine")
    again = attempt_log(log)
    ATTEMPTS.addHandler(again)
    bank.call(len, "fine")
    ATTEMPTS.removeHandler(again)
    again.close()
    assert len(lines(log)) == 3


def test_secrets_are_masked(log):
    bank = redrive.Service("bank").with_options(endpoint="https://bank.example/?api_key=sk_live_51H8xQ2eZvKYlo2C")
    bank.call(len, "fine")
    assert "sk_live_51H8xQ2eZvKYlo2C" not in log.read_text()


def call_many(number):
    bank = redrive.Service(f"bank-{number}").with_options(endpoint="x" * 5_000)
    for _ in range(200):
        bank.call(len, "fine")


@pytest.mark.process
def test_lines_of_many_processes_are_complete(log):
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=call_many, args=(number,)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = [one["service"] for one in lines(log)]
    assert sorted(found) == sorted(f"bank-{number}" for number in range(8) for _ in range(200))


def test_log_closed_twice_or_unwritable_harms_no_call(tmp_path, capsys):
    handler, bank = attempt_log(tmp_path / "attempts.jsonl"), redrive.Service("bank")
    ATTEMPTS.addHandler(handler)
    handler.close()
    handler.close()
    ATTEMPTS.setLevel(logging.INFO)
    try:
        assert bank.call(len, "fine") == 4
    finally:
        ATTEMPTS.setLevel(logging.NOTSET)
        ATTEMPTS.removeHandler(handler)
    assert "Bad file descriptor" in capsys.readouterr().err


def test_log_follows_a_file_that_logrotate_renames(tmp_path):
    path = tmp_path / "attempts.jsonl"
    handler = attempt_log(path)
    record = logging.LogRecord("redrive.attempts", logging.INFO, "", 0, "line %d", (1,), None)
    handler.emit(record)
    path.rename(tmp_path / "attempts.jsonl.1")
    handler.emit(record)
    handler.emit(record)
    handler.close()
    assert len(path.read_text().splitlines()) == 2
    assert len((tmp_path / "attempts.jsonl.1").read_text().splitlines()) == 1
