"""Which failed calls share a letter, and what a letter stores of a call, on every store."""

import asyncio
import functools
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import httpx
import pytest
import requests
from pydantic import BaseModel

import redrive
from redrive.testing import Answer, FaultyServer

ONCE = redrive.Retry(attempts=1)
paid = []
closed = [True]


def pay(account, amount, *, note=None):
    if closed:
        raise ValueError("closed")
    paid.append((account, amount, note))


async def apay(account, amount):
    pay(account, amount)


class Account:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return True

    __hash__ = None

    def pay(self, amount):
        pay(self.number, amount)

    def __call__(self, amount):
        pay(self.number, amount)

    @classmethod
    def open(cls, amount):
        pay(cls.__name__, amount)


class Savings(Account):
    pass


@dataclass
class Card:
    number: str

    def pay(self, amount):
        pay(self.number, amount)


class Debit(Card):
    pass


class Credit(Card):
    pass


class Fee(BaseModel):
    amount: int


class Bonus(Fee):
    pass


Pair = namedtuple("Pair", "amount")
Couple = namedtuple("Couple", "amount")


class Rate(Enum):
    ONE = 1


class Level(Enum):
    ONE = 1


class UserBatch(UserDict):
    pass


class Uncopyable(list):
    def __copy__(self):
        raise TypeError("no copies")

    def __reduce_ex__(self, protocol):
        raise TypeError("no copies")


def open_account(amount):
    pay("opened", amount)


def closure(account):
    def send(amount):
        pay(account, amount)

    return send


def thunk_of_object(account):
    def send():
        account.pay(5)

    return send


def decorated(function):
    def inner(amount):
        function(amount)

    return inner


def by_default(account):
    def send(amount, account=account):
        pay(account, amount)

    return send


@pytest.fixture(autouse=True)
def bank_is_closed():
    closed[:] = [True]
    paid.clear()


@pytest.fixture
def bank(store):
    return redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        yield server


def fail(bank, *calls):
    for function, *args in calls:
        with pytest.raises(ValueError, match="closed"):
            bank.call(function, *args)


def letters(store):
    return sorted(store.dlq.find(pipeline="payments"), key=lambda letter: letter.id)


class TestPartials:
    def test_record_has_the_bound_arguments(self, store, bank):
        for account in ("A", "B", "B"):
            fail(bank, (functools.partial(pay, account, note="rent"), 5))
        first, second = letters(store)
        assert first.record == {
            "function": "pay",
            "module": __name__,
            "args": ["A", 5],
            "kwargs": {"note": "rent"},
        }
        assert second.seen == 2
        closed.clear()
        target = bank.replay_target(functools.partial(pay, "C"))
        assert store.dlq.replay(target, dry_run=False).reprocessed == 2
        assert sorted(paid) == [("A", 5, "rent"), ("B", 5, "rent")]

    def test_async_and_decorated(self, store, bank):
        guarded = bank(functools.partial(apay, "A"))
        for call in (lambda: bank.acall(functools.partial(apay, "B"), 5), lambda: guarded(5)):
            with pytest.raises(ValueError, match="closed"):
                asyncio.run(call())
        closed.clear()
        assert store.dlq.replay(bank.replay_target(guarded), dry_run=False).reprocessed == 2
        assert sorted(paid) == [("A", 5, None), ("B", 5, None)]


class TestBoundValues:
    @pytest.mark.parametrize(
        "bind",
        [
            lambda account: Account(account).pay,
            Account,
            lambda account: functools.partial(Account(account).pay),
            closure,
            lambda account: decorated(closure(account)),
            lambda account: decorated(Account(account).pay),
            lambda account: lambda amount: pay(account, amount),
            lambda account: lambda amount, account=account: pay(account, amount),
            lambda account: lambda amount: Account(account).pay(amount),
            lambda account: Card(account).pay,
        ],
    )
    def test_calls_with_other_values_are_separate_letters(self, store, bank, bind):
        fail(bank, (bind("A"), 5), (bind("B"), 5))
        assert [letter.seen for letter in letters(store)] == [1, 1]
        closed.clear()
        report = store.dlq.replay(bank.replay_target(bind("A")), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (0, 2, [])
        assert "not among its arguments" in letters(store)[0].last_error

    def test_object_in_a_function_without_arguments(self, store, bank):
        fail(bank, (thunk_of_object(Account("A")),), (thunk_of_object(Account("B")),))
        assert [letter.seen for letter in letters(store)] == [1, 1]

    @pytest.mark.parametrize("bind", [closure, lambda account: Card(account).pay])
    def test_equal_data_is_one_letter(self, store, bank, bind):
        fail(bank, (bind("A"), 5), (bind("A"), 5), (bind("B"), 5))
        first, second = letters(store)
        assert (first.seen, second.seen) == (2, 1)
        assert "A" in str(first.record["bound"])

    def test_global_variable_of_a_lambda_in_a_loop(self, store, bank):
        for name in ("A", "B"):
            globals()["account_of_loop"] = name
            fail(bank, (lambda: pay(account_of_loop, 5),))  # noqa: F821
        assert [letter.record["bound"] for letter in letters(store)] == [
            {"account_of_loop": "A"},
            {"account_of_loop": "B"},
        ]

    def test_lambdas_of_other_code_are_not_mixed(self, store, bank):
        first, second = lambda amount: pay("A", amount), lambda amount: pay("B", amount)
        fail(bank, (first, 5), (second, 5), (second, 5))
        assert [letter.seen for letter in letters(store)] == [1, 2]
        closed.clear()
        report = store.dlq.replay(bank.replay_target(first), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (1, 1, [("A", 5, None)])

    def test_replay_target_must_have_the_same_inner_default(self, store, bank):
        fail(bank, (by_default("A"), 5), (by_default("B"), 5))
        closed.clear()
        report = store.dlq.replay(bank.replay_target(by_default("A")), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (1, 1, [("A", 5, None)])

    def test_function_that_a_decorator_wraps(self, store, bank):
        def refund(amount):
            pay("refund", amount)

        def invoice(amount):
            pay("invoice", amount)

        fail(bank, (decorated(refund), 5), (decorated(invoice), 5), (decorated(open_account), 5))
        closed.clear()
        for function in (refund, open_account):
            report = store.dlq.replay(bank.replay_target(decorated(function)), dry_run=False)
        assert (report.reprocessed, paid) == (1, [("opened", 5, None)])

    def test_two_decorators_without_wraps(self, store, bank):
        def charge(amount):
            pay("charge", amount)

        def refund(amount):
            pay("refund", amount)

        fail(bank, (decorated(decorated(charge)), 5), (decorated(decorated(refund)), 5))
        assert [letter.seen for letter in letters(store)] == [1, 1]
        closed.clear()
        report = store.dlq.replay(bank.replay_target(decorated(decorated(charge))), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (0, 2, [])

    def test_methods_of_two_subclasses(self, store, bank):
        fail(bank, (Debit("A").pay, 5), (Credit("A").pay, 5), (Credit("A").pay, 5))
        first, second = letters(store)
        assert (first.seen, second.seen) == (1, 2)
        assert [one.record["argument_types"] for one in (first, second)] == [
            {"self": f"{__name__}.Debit"},
            {"self": f"{__name__}.Credit"},
        ]
        for letter in (first, second):
            store.dlq.edit(letter.id, patch={"argument_missing": None})
        closed.clear()
        report = store.dlq.replay(bank.replay_target(Debit("A").pay), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (1, 1, [("A", 5, None)])

    def test_classmethods_of_two_classes(self, store, bank):
        fail(bank, (Account.open, 5), (Savings.open, 5), (Savings.open, 5))
        assert [letter.seen for letter in letters(store)] == [1, 2]
        closed.clear()
        report = store.dlq.replay(bank.replay_target(Savings.open), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (1, 1, [("Savings", 5, None)])

    def test_functions_of_one_name_in_two_modules(self, store, bank):
        other = {"__name__": "refunds", "paid": paid, "closed": closed}
        exec("def pay(account, amount):\n    if closed: raise ValueError('closed')\n    paid.append('refund')", other)
        fail(bank, (pay, "A", 5), (other["pay"], "A", 5))
        assert [letter.seen for letter in letters(store)] == [1, 1]
        closed.clear()
        report = store.dlq.replay(bank.replay_target(pay), dry_run=False)
        assert (report.reprocessed, report.failed_again, paid) == (1, 1, [("A", 5, None)])

    def test_secret_is_not_stored(self, store, bank):
        def signed(password):
            return lambda amount: pay(password, amount)

        for password in ("s3cret-s3cret-1", "s3cret-s3cret-2", "s3cret-s3cret-2"):
            fail(bank, (signed(password), 5))
        assert [letter.seen for letter in letters(store)] == [1, 2]
        assert "s3cret" not in str([letter.record for letter in letters(store)])

    def test_edit_makes_a_bound_method_replayable(self, store, bank):
        fail(bank, (Account("A").pay, 5))
        [letter] = letters(store)
        store.dlq.edit(letter.id, patch={"argument_missing": None})
        closed.clear()
        assert store.dlq.replay(bank.replay_target(Account("A").pay), dry_run=False).reprocessed == 1
        assert paid == [("A", 5, None)]


class TestFunctionsWithoutBoundValues:
    def test_equal_calls_are_one_letter(self, store, bank):
        progress = []

        def count(amount, flag=True):
            progress.append(amount)
            raise ValueError("closed")

        def constant(amount, flag=True):
            raise ValueError("closed")

        def rewrite(amount):
            nonlocal last
            last = f"{amount}"
            raise ValueError("closed")

        last = ""
        for _ in range(2):
            fail(bank, (pay, "A", 5), (constant, 5), (rewrite, 5), (lambda: pay("A", 5),), (Account.open, 5))
            fail(bank, (count, 5))  # it works on an object
        assert sorted(letter.seen for letter in letters(store)) == [1, 1, 2, 2, 2, 2, 2]
        assert not any("argument_missing" in letter.record for letter in letters(store))


class TestClassesOfArguments:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (Debit("A"), Credit("A")),
            (Fee(amount=1), Bonus(amount=1)),
            (Pair(1), Couple(1)),
            (Rate.ONE, Level.ONE),
            ([Debit("A")], [Credit("A")]),
            (Path("a"), "a"),
        ],
    )
    def test_equal_fields_of_two_classes_are_two_letters(self, store, bank, first, second):
        fail(bank, (pay, first, 5), (pay, second, 5), (pay, second, 5))
        assert [letter.seen for letter in letters(store)] == [1, 2]
        assert "argument_types" in letters(store)[0].record

    def test_classes_are_named_by_place(self, store, bank):
        fail(bank, (pay, [Debit("A")], 5))
        [letter] = letters(store)
        assert letter.record["argument_types"] == {"args.0.0": f"{__name__}.Debit"}

    @pytest.mark.parametrize("make", [lambda: Account("A"), lambda: bytearray(b"a"), lambda: Counter("a")])
    def test_other_objects_are_letters_of_their_own(self, store, bank, make):
        fail(bank, (pay, make(), 5), (pay, make(), 5))
        assert [letter.seen for letter in letters(store)] == [1, 1]


class TestMutatedArguments:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: defaultdict(list, a=[1]),
            lambda: OrderedDict(a=[1]),
            lambda: Counter(a=1),
            lambda: UserBatch(a=[1]),
            lambda: Pair({"a": [1]}),
        ],
    )
    def test_subclasses_and_named_tuples_are_copied(self, store, bank, make):
        def send(batch):
            batch = batch.amount if isinstance(batch, Pair) else batch
            if isinstance(batch["a"], list):
                batch["a"].clear()
            batch.clear()
            raise ValueError("closed")

        fail(bank, (send, make()))
        [letter] = letters(store)
        plain = {"a": 1} if isinstance(make(), Counter) else {"a": [1]}
        assert letter.record["args"] == [{"amount": plain} if isinstance(make(), Pair) else plain]

    def test_what_cannot_be_copied_is_noted(self, store, bank):
        fail(bank, (pay, Uncopyable([1]), 5))
        [letter] = letters(store)
        assert "(Uncopyable) could not be copied" in letter.record["argument_missing"]

    @pytest.mark.parametrize("decorate", [False, True])
    @pytest.mark.parametrize("is_partial", [False, True])
    def test_record_has_the_original_arguments(self, store, bank, decorate, is_partial):
        def send(batch, order, *, tags):
            order.pop("id")
            order["items"].clear()
            tags.clear()
            while batch:
                if batch.pop(0) == 2:
                    raise ValueError("closed")

        given = [1, 2, 3], {"id": 7, "items": [{"sku": 1}]}
        call = bank(send) if decorate else functools.partial(bank.call, send)
        if is_partial:
            call = functools.partial(bank.call, functools.partial(send, given[0]))
            given = given[1:]
        with pytest.raises(ValueError, match="closed"):
            call(*given, tags={"new"})
        [letter] = letters(store)
        assert letter.record["args"] == [[1, 2, 3], {"id": 7, "items": [{"sku": 1}]}]
        assert letter.record["kwargs"] == {"tags": {"new"}}

    def test_async(self, store, bank):
        @bank
        async def send(batch):
            batch.clear()
            raise ValueError("closed")

        with pytest.raises(ValueError, match="closed"):
            asyncio.run(send([1, 2]))
        assert letters(store)[0].record["args"] == [[1, 2]]

    def test_retry_does_not_change_the_record(self, store):
        bank = redrive.Service(
            "bank", retry=redrive.Retry(attempts=2, base=0.001, cap=0.001), dead_letters=store, pipeline="payments"
        )

        def order(fields):
            fields.pop("id")
            raise ConnectionError("down")

        with pytest.raises(KeyError):
            bank.call(order, {"id": 7, "v": 1})
        assert letters(store)[0].record["args"] == [{"id": 7, "v": 1}]

    def test_collection_that_holds_itself(self, store, bank):
        rows = [1]
        rows.append(rows)
        fail(bank, (pay, rows, 5))
        assert len(letters(store)) == 1


class TestSimilarRequests:
    @pytest.mark.parametrize("library", ["httpx", "requests"])
    @pytest.mark.parametrize(
        ("paths", "headers"),
        [
            ([f"/services/T00000000/B00000000/{letter * 24}" for letter in "XY"], [{}, {}]),
            (["/send?token=AAAAAAAAAAAAAAAA", "/send?token=BBBBBBBBBBBBBBBB"], [{}, {}]),
            (["/send?sig=AAAAAAAAAAAAAAAA", "/send?sig=BBBBBBBBBBBBBBBB"], [{}, {}]),
            (["/send", "/send"], [{"X-Tenant": "a"}, {"X-Tenant": "b"}]),
            (["/send", "/send"], [{"X-Api-Key": "key-of-tenant-a"}, {"X-Api-Key": "key-of-tenant-b"}]),
        ],
    )
    def test_two_requests_are_two_letters(self, store, bank, server, library, paths, headers):
        for path in paths:
            server.on(path.partition("?")[0], Answer(422))
        with requests.Session() as session, httpx.Client(transport=bank.httpx_transport()) as client:
            session.mount("http://", bank.requests_adapter())
            for path, own in zip([*paths, paths[1]], [*headers, headers[1]], strict=True):
                sender = client if library == "httpx" else session
                sender.post(server.url + path, json={"text": "disk full"}, headers=own)
        found = letters(store)
        assert [letter.seen for letter in found] == [1, 2]
        assert not any(secret in str([one.record for one in found]) for secret in ("AAAA", "XXXX", "key-of-tenant"))

    def test_headers_added_on_sending_do_not_count(self, store, bank, server):
        server.on("/send", Answer(422))
        with httpx.Client(transport=bank.httpx_transport()) as client:
            for number in "12":
                own = {"traceparent": f"00-{number}", "X-Request-Id": number, "Authorization": f"Bearer {number}"}
                client.post(server.url + "/send", json={"text": "disk full"}, headers=own)
        [letter] = letters(store)
        assert letter.seen == 2
        assert letter.record.keys() == {"method", "url", "content_type", "body"}

    def test_fields_of_a_closure_are_redacted(self, store_url):
        with redrive.connect(store_url, redact=["account"], store_redacted=True) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            fail(bank, (closure("A-secret"), 5), (closure("B-secret"), 5))
            found = letters(store)
        assert [letter.seen for letter in found] == [1, 1]
        assert "secret" not in str([letter.record for letter in found])
