"""One attempt of a task: its arguments, its result, and its errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import socket
import sys
from pathlib import Path

import httpx
import pytest

import redrive
from redrive.model.calls import Kind
from redrive.store.encoding import decode, encode
from redrive.tasks.flow import Flow
from redrive.tasks.workers.protocol import LARGEST, AttemptEnd, FrameReader, TaskJob, job_frame, read_job
from redrive.tasks.workers.run_task import perform


def attempt(function, *, fans_out=False, arguments=(), params=(), result_file="", key=None, files=(), **options):
    flow = Flow("attempts", params=params)
    flow.task(name="work", key=key, **options)(function)
    given = {name: encode(value) for name, value in dict(arguments).items()}
    job = TaskJob(ticket=7, task="work", arguments=given, files=dict(files), identity="same", result_file=result_file)
    return perform(flow.graph.nodes["work"], job, fans_out=fans_out)


def result(function, **options):
    outcome = attempt(function, **options)
    assert outcome.ended is AttemptEnd.RETURNED, outcome
    assert outcome.verdict is None
    return None if outcome.result is None else decode(outcome.result)


def test_task_gets_its_arguments_and_returns_its_result():
    assert result(lambda day, fee: {day: fee}, arguments={"day": "monday", "fee": 1.5}, params=["day", "fee"]) == {
        "monday": 1.5
    }


def test_outcome_has_the_ticket_of_its_job_and_its_time():
    outcome = attempt(lambda: 1)
    assert outcome.ticket == 7
    assert outcome.seconds >= 0


class TestRedactedFields:
    def test_error_shows_no_value_of_a_redacted_field(self, tmp_path):
        def charge(row, customer, rows):
            raise ValueError(f"no fee for {row.pop('card')} of {customer['name']}, {rows[0]['card']}")

        (tmp_path / "rows").write_text(encode([{"card": "grey heron 8"}]))
        job = TaskJob(
            ticket=7,
            task="charge",
            arguments={"row": encode({"card": "blue heron 7"}), "customer": encode({"name": "Anna"})},
            files={"rows": str(tmp_path / "rows")},
            redact=("card",),
        )
        (sent,) = map(read_job, FrameReader().feed(job_frame(job)))
        flow = Flow("charges", params=["row", "customer", "rows"])
        flow.task(charge)
        outcome = perform(flow.graph.nodes["charge"], sent)
        assert outcome.error == "ValueError: no fee for *** of Anna, ***"
        assert "ValueError: no fee for *** of Anna, ***" in outcome.trace
        assert "heron" not in f"{outcome}"


def test_task_that_returns_nothing_has_no_result():
    outcome = attempt(lambda: None)
    assert (outcome.ended, outcome.result, outcome.truth) == (AttemptEnd.RETURNED, None, False)


@pytest.mark.parametrize("value", [0, "", [], {}, False, None])
def test_falsy_value_is_false_for_a_sensor(value):
    assert not attempt(lambda: value).truth


@pytest.mark.parametrize("value", [1, "no", [0], {"a": None}, True])
def test_truthy_value_is_true_for_a_sensor(value):
    assert attempt(lambda: value).truth


def test_arguments_may_be_read_from_files(tmp_path):
    path = tmp_path / "argument.json"
    path.write_text(encode({"day": [1, 2]}))
    assert result(lambda day: day, files={"day": str(path)}, params=["day"]) == {"day": [1, 2]}


def test_large_result_is_written_whole_to_its_file(tmp_path):
    path = tmp_path / "result.json"
    outcome = attempt(lambda: "x" * LARGEST, result_file=str(path))
    assert (outcome.in_file, outcome.result, outcome.truth) == (True, None, True)
    assert decode(path.read_bytes()) == "x" * LARGEST
    assert list(tmp_path.iterdir()) == [path]


def test_result_is_measured_in_bytes(tmp_path):
    outcome = attempt(lambda: "€" * (LARGEST // 2), result_file=str(tmp_path / "result.json"))
    assert outcome.in_file


def test_unwritable_result_file_is_a_failure(tmp_path):
    (tmp_path / "taken").write_text("no directory")
    outcome = attempt(lambda: "x" * LARGEST * 2, result_file=str(tmp_path / "taken" / "result.json"))
    assert outcome.ended is AttemptEnd.RAISED
    assert outcome.error.startswith("FileExistsError")


def test_key_is_the_same_for_all_attempts_of_a_task():
    assert result(lambda idempotency_key: idempotency_key) == "same"


def test_task_may_make_its_own_key_from_its_arguments():
    def work(day, idempotency_key):
        return idempotency_key

    assert result(work, arguments={"day": 3}, params=["day"], key=lambda day: f"payout-{day}") == "payout-3"


async def coroutine():
    await asyncio.sleep(0)
    return "done"


class Callable:
    async def __call__(self):
        return "done"


@pytest.mark.parametrize("function", [coroutine, functools.partial(coroutine), Callable(), lambda: coroutine()])
def test_every_kind_of_coroutine_function_is_run(function):
    assert result(function) == "done"


@pytest.mark.parametrize(
    "made",
    [
        lambda: [3, 1, 2],
        lambda: (3, 1, 2),
        lambda: {3, 1, 2},
        lambda: frozenset([3, 1, 2]),
        lambda: range(1, 4),
        lambda: (number for number in (3, 1, 2)),
        lambda: {3: "c", 1: "a", 2: "b"}.keys(),
        lambda: iter([3, 1, 2]),
    ],
)
def test_any_iterable_is_a_list_for_a_fan_out(made):
    assert sorted(result(made, fans_out=True)) == [1, 2, 3]


def test_items_of_a_fan_out_may_be_generated_asynchronously():
    async def pages():
        for page in range(3):
            await asyncio.sleep(0)
            yield page

    assert result(pages, fans_out=True) == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "named"), [("text", "a str"), ({"a": 1}, "a dict"), (5, "an int"), (None, "None"), (b"x", "a bytes")]
)
def test_fan_out_over_another_type_is_permanently_rejected(value, named):
    outcome = attempt(lambda: value, fans_out=True)
    assert outcome.verdict.kind is Kind.PERMANENT
    assert outcome.error == (
        f"task 'work' returned {named}, and other tasks run for each item of its result: return a list"
    )


def test_error_while_items_are_generated_is_the_tasks_own():
    def pages():
        yield 1
        raise OSError("gone")

    outcome = attempt(pages, fans_out=True)
    assert outcome.error == "OSError: gone"


@dataclasses.dataclass
class Fee:
    amount: int


def test_value_that_reduces_to_data_is_a_result():
    assert result(lambda: [Fee(3)]) == [{"amount": 3}]


def test_result_that_json_cannot_represent_is_rejected():
    with socket.socket() as connection:
        alone, within = attempt(lambda: connection), attempt(lambda: {"socket": [connection]})
    assert alone.verdict.kind is Kind.PERMANENT
    assert alone.error == (
        "task 'work' returned a socket, which JSON cannot hold: return plain data, or write it to a file and return "
        "its path"
    )
    assert "returned a dict that holds a socket, which" in within.error


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: (number for number in range(3)), "a generator"),
        (lambda: ValueError, "the class ValueError"),
        (lambda: ValueError("x"), "a ValueError"),
        (lambda: cycle(), "a list that holds itself"),
        (lambda: functools.reduce(lambda inner, _: [inner], range(1_000), 1), "nested too deep"),
    ],
)
def test_rejection_names_the_rejected_value(made, said):
    outcome = attempt(made)
    assert outcome.verdict.kind is Kind.PERMANENT
    assert said in outcome.error


def cycle():
    found = []
    found.append(found)
    return found


def test_error_is_classified_in_the_task_scope():
    assert attempt(lambda: int("x")).verdict.kind is Kind.AMBIGUOUS
    assert attempt(lambda: Path("/nowhere/at/all").read_text()).ended is AttemptEnd.RAISED


def test_verdict_stated_by_a_task_is_used():
    def limited():
        raise redrive.RateLimited("slow down", retry_after=12.0)

    def dropped():
        raise redrive.Discard("nobody needs it")

    assert attempt(limited).verdict.kind is Kind.RATE_LIMITED
    assert attempt(limited).verdict.retry_after == 12.0
    assert attempt(dropped).verdict.kind is Kind.DISCARD


def test_rules_of_the_service_apply():
    service = redrive.Service("bank", classifier=redrive.Classifier().rule(ValueError, kind="transient"))
    assert attempt(lambda: int("x"), service=service).verdict.kind is Kind.TRANSIENT


def test_error_has_its_line_cause_and_traceback():
    def work():
        raise ValueError("could not convert")

    outcome = attempt(work)
    assert outcome.ended is AttemptEnd.RAISED
    assert outcome.error == "ValueError: could not convert"
    assert outcome.fingerprint.startswith(f"ValueError@{__name__}:")
    assert outcome.trace.count('File "') == 1
    assert "in work" in outcome.trace


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (SystemExit(3), "task 'work' called sys.exit(3): let it return"),
        (SystemExit(), "task 'work' called sys.exit(): let it return"),
        (KeyboardInterrupt(), "task 'work' raised KeyboardInterrupt, which is a signal to stop: let it return"),
        (asyncio.CancelledError(), "raised CancelledError"),
        (concurrent.futures.CancelledError(), "raised CancelledError"),
    ],
)
def test_task_that_tries_to_exit_has_failed(raised, said):
    def work():
        raise raised

    outcome = attempt(work)
    assert outcome.verdict.kind is Kind.AMBIGUOUS
    assert said in outcome.error


def test_text_of_sys_exit_is_masked_before_it_is_cut():
    for length in range(150, 201):
        outcome = attempt(lambda length=length: sys.exit("." * length + " postgresql://etl:Zq77x@db/prod"))
        assert "Zq" not in outcome.error + outcome.trace


def test_reason_and_detail_of_a_verdict_are_masked():
    classifier = redrive.Classifier().rule(ValueError, kind="permanent", reason="wrong password=Zq77x")
    service = redrive.Service("bank", classifier=classifier)

    def work():
        raise ValueError("Zq77x is not a number") from RuntimeError("password=Zq77x")

    outcome = attempt(work, service=service)
    assert outcome.verdict.reason == "wrong password=***"
    assert outcome.error == "ValueError: *** is not a number"
    assert "Zq77x" not in outcome.trace.replace('"Zq77x is', "").replace('"password=Zq77x', "")


def test_own_task_timeout_is_an_error_of_the_task():
    def work():
        raise redrive.TaskTimeout("no answer in an hour")

    outcome = attempt(work)
    assert (outcome.ended, outcome.verdict.kind) == (AttemptEnd.RAISED, Kind.TRANSIENT)
    assert outcome.error == "the task itself raised TaskTimeout: no answer in an hour"
    assert outcome.fingerprint.startswith("redrive.errors.TaskTimeout@")


def test_error_that_cannot_be_inspected_is_an_error():
    class Hostile(Exception):
        def __getattribute__(self, name):
            raise MemoryError

    def work():
        raise Hostile

    outcome = attempt(work)
    assert outcome.ended is AttemptEnd.RAISED
    assert outcome.error == "Hostile"


class TestUnknownEffect:
    """The request may have taken effect, and the service has not sent it again."""

    @pytest.fixture
    def post(self):
        bank = redrive.Service("bank", retry=redrive.Retry(base=0, cap=0))
        pages = {}

        def post(answer, method="POST", service=bank, headers=()):
            def answering(request):
                pages["sent"] = pages.get("sent", 0) + 1
                return answer(request)

            transport = service.httpx_transport(httpx.MockTransport(answering))
            with httpx.Client(transport=transport, base_url="https://bank.example") as client:
                client.request(method, "/pay", headers=dict(headers)).raise_for_status()

        post.pages = pages
        return post

    @staticmethod
    def slow(request):
        raise httpx.ReadTimeout("too slow", request=request)

    @pytest.mark.parametrize("status", [500, 503])
    def test_ambiguous_response_is_a_dead_letter(self, post, status):
        outcome = attempt(lambda: post(lambda _: httpx.Response(status)))
        assert (outcome.verdict.kind, post.pages["sent"]) == (Kind.PERMANENT, 1)
        assert "it may have taken effect" in outcome.error

    @pytest.mark.parametrize("attempts", [1, 3])
    def test_lost_response_is_a_dead_letter(self, post, attempts):
        bank = redrive.Service("bank", retry=redrive.Retry(attempts=attempts, base=0, cap=0))
        outcome = attempt(lambda: post(self.slow, service=bank))
        assert (outcome.verdict.kind, post.pages["sent"]) == (Kind.PERMANENT, 1)

    def test_error_of_its_own_is_a_dead_letter(self, post):
        def work():
            try:
                post(self.slow)
            except httpx.HTTPError as error:
                raise redrive.Transient("the bank is away") from error

        assert attempt(work).verdict.kind is Kind.PERMANENT

    def test_idempotent_request_is_retried(self, post):
        assert attempt(lambda: post(self.slow, method="GET")).verdict.kind is Kind.TRANSIENT
        safe = redrive.Service("bank", retry=redrive.Retry(attempts=1), idempotent=True)
        assert attempt(lambda: post(self.slow, service=safe)).verdict.kind is Kind.TRANSIENT
        assert attempt(lambda: post(self.slow, headers={"Idempotency-Key": "a"})).verdict.kind is Kind.TRANSIENT

    def test_unsent_request_is_retried(self, post):
        def refused(request):
            raise httpx.ConnectError("refused", request=request)

        assert attempt(lambda: post(refused)).verdict.kind is Kind.TRANSIENT

    def test_request_rejected_by_the_server_is_retried(self, post):
        once = redrive.Service("bank", retry=redrive.Retry(attempts=1))  # a second attempt would wait for half a minute
        outcome = attempt(lambda: post(lambda _: httpx.Response(429), service=once))
        assert outcome.verdict.kind is Kind.RATE_LIMITED

    def test_task_with_an_idempotency_key_is_retried(self, post):
        assert attempt(lambda idempotency_key: post(self.slow)).verdict.kind is Kind.TRANSIENT


def test_missing_arguments_are_an_error_of_the_task():
    outcome = attempt(lambda day: day, params=["day"])
    assert outcome.error.startswith("TypeError")
    assert outcome.fingerprint == "TypeError"
