"""Calls that become dead letters, and their replay, on every store."""

import array
import asyncio
import io
import signal
from collections import UserList
from collections.abc import Sequence
from email.message import EmailMessage
from xml.etree import ElementTree

import httpx
import pytest
import requests

import redrive
from redrive.calls.function import endpoint_of
from redrive.testing import Answer, FaultyServer

ONCE = redrive.Retry(attempts=1)
UNAVAILABLE = httpx.HTTPStatusError("503", request=httpx.Request("GET", "http://bank"), response=httpx.Response(503))
UNAUTHORIZED = httpx.HTTPStatusError("401", request=httpx.Request("GET", "http://bank"), response=httpx.Response(401))


@pytest.fixture
def bank(store):
    return redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")


@pytest.fixture(scope="module")
def server():
    with FaultyServer() as server:
        server.on("/orders/1", Answer(422, json={"detail": "fee: not a number"}))
        server.on("/orders/2", Answer(422, json={"detail": "fee: not a number"}))
        yield server


def letters(store):
    return list(store.dlq.find(pipeline="payments"))


errors = []
paid = []


def pay(account, *, amount=1, idempotency_key=None):
    if errors:
        raise errors[0]
    paid.append((account, amount))


def order(*, account, idempotency_key):
    paid.append(idempotency_key)
    raise TimeoutError("no answer")


@pytest.fixture(autouse=True)
def bank_works():
    errors.clear()
    paid.clear()


class TestFunctions:
    def test_failed_call_is_a_letter_that_can_be_replayed(self, store, bank):
        errors[:] = [ConnectionResetError("peer went away")]
        guarded = bank(pay)
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                guarded("DE-17", amount=5)
        [letter] = letters(store)
        assert letter.record == {
            "function": "pay",
            "module": __name__,
            "args": ["DE-17"],
            "kwargs": {"amount": 5},
            "generated_key": letter.record["generated_key"],
        }
        assert (letter.error_type, letter.seen) == ("call", 2)
        target = bank.replay_target(guarded)
        with pytest.raises(redrive.ReplayStopped, match="peer went away"):
            store.dlq.replay(target, dry_run=False)
        [error] = errors
        errors.clear()
        report = store.dlq.replay(target, dry_run=False)
        assert report.reprocessed == 1
        assert paid == [("DE-17", 5)]
        errors.append(error)
        with pytest.raises(ConnectionResetError):
            guarded("DE-17", amount=5)
        assert store.dlq.count(pipeline="payments", status="pending") == 1

    def test_async_call_becomes_a_letter(self, store, bank):
        async def pay(account):
            raise ValueError(f"no account {account}")

        with pytest.raises(ValueError, match="no account"):
            asyncio.run(bank.acall(pay, "DE-17"))
        [letter] = letters(store)
        assert letter.record["args"] == ["DE-17"]
        report = store.dlq.replay(bank.replay_target(pay), dry_run=False)
        assert report.failed_again == 1

    def test_fallback_and_discard_leave_no_letter(self, store, bank):
        def fail():
            raise ConnectionResetError

        def drop():
            raise redrive.Discard("a test account")

        assert bank.with_options(fallback=7).call(fail) == 7
        with pytest.raises(redrive.Discard):
            bank.call(drop)
        lenient = redrive.Service("lenient", on_discard="none", dead_letters=store, pipeline="payments")
        assert lenient.call(drop) is None
        assert letters(store) == []

    def test_letter_that_cannot_be_stored_hides_no_error(self, bank, caplog):
        class Broken:
            def put_many(self, letters, *, pipeline):
                raise OSError("no space")

        bank.core.letters._queue = Broken()
        with pytest.raises(ZeroDivisionError):
            bank.call(divmod, 1, 0)
        assert "cannot store the dead letter of a call of divmod: OSError: no space" in caplog.text

    def test_signal_handler_ends_storing_and_replaying(self, store, bank, caplog):
        def over(*_):
            raise TimeoutError("job over its limit")

        class Slow:
            def put_many(self, letters, *, pipeline):
                signal.raise_signal(signal.SIGALRM)

        def ring():
            signal.raise_signal(signal.SIGALRM)

        before = signal.signal(signal.SIGALRM, over)
        try:
            with pytest.raises(TimeoutError, match="job over its limit"):
                bank.replay_target(ring).reprocess([{"function": endpoint_of(ring), "args": [], "kwargs": {}}])
            bank.core.letters._queue = Slow()
            with pytest.raises(TimeoutError, match="job over its limit"):
                bank.call(divmod, 1, 0)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert "cannot store the dead letter" not in caplog.text


class TestEqualCalls:
    """The same function and arguments are one open letter, whatever the error."""

    @pytest.fixture
    def service(self, store):
        breaker = redrive.Breaker(failures=1, minimum=1)
        return redrive.Service("bank", retry=ONCE, breaker=breaker, dead_letters=store, pipeline="payments")

    @pytest.mark.parametrize("circuit_first", [False, True])
    def test_open_circuit_joins_the_letter_of_the_outage(self, store, service, circuit_first):
        errors[:] = [ConnectionRefusedError("down")]
        if circuit_first:
            with pytest.raises(ConnectionRefusedError):
                service.call(pay, "another account", amount=1)
        for _ in range(2):
            with pytest.raises((ConnectionRefusedError, redrive.CircuitOpen)):
                service.call(pay, "DE-17", amount=5)
        service.reset()
        with pytest.raises(ConnectionRefusedError):
            service.call(pay, "DE-17", amount=5)
        letter = next(one for one in letters(store) if one.record["args"] == ["DE-17"])
        assert (letter.seen, letter.attempts, letter.error_message) == (3, 1, "ConnectionRefusedError: down")
        [cause] = store.dlq.causes(pipeline="payments", status="pending")
        assert (cause.message, cause.fingerprint) == ("ConnectionRefusedError: down", letter.fingerprint)
        assert cause.count == store.dlq.count(pipeline="payments") == 1 + circuit_first
        service.reset()
        errors.clear()
        store.dlq.replay(service.replay_target(pay), dry_run=False)
        assert paid.count(("DE-17", 5)) == 1

    def test_boundary_of_a_multipart_body_does_not_count(self, store, bank, server):
        with requests.Session() as session, httpx.Client(transport=bank.httpx_transport()) as client:
            session.mount("http://", bank.requests_adapter())
            for sender in (session, client):
                for content in (b"abc", b"abc", b"xyz"):
                    sender.post(f"{server.url}/orders/1", files={"file": ("name", content)})
        assert sorted(letter.seen for letter in letters(store)) == [1, 1, 2, 2]
        assert all("boundary=redrive" in letter.record["content_type"] for letter in letters(store))

    def test_open_circuit_keeps_an_ambiguous_error(self, store, service):
        def pay(account):
            raise TimeoutError("no answer")

        for _ in range(2):
            with pytest.raises((TimeoutError, redrive.CircuitOpen)):
                service.call(pay, "DE-17")
        [letter] = letters(store)
        assert (letter.seen, letter.attempts, letter.error_message) == (2, 1, "TimeoutError: no answer")

    def test_order_of_keywords_does_not_count(self, store, service):
        def pay(**order):
            raise ValueError("closed")

        for order in ({"account": 1, "amount": 5}, {"amount": 5, "account": 1}):
            with pytest.raises(ValueError, match="closed"):
                service.call(pay, **order)
        assert [letter.seen for letter in letters(store)] == [2]

    def test_calls_of_two_idempotency_keys_are_two_letters(self, store, service):
        closed, sent = [True], []

        def pay(account, idempotency_key=None):
            if closed:
                raise ValueError("closed")
            sent.append(idempotency_key)

        for key in ("invoice-1", "invoice-2"):
            with pytest.raises(ValueError, match="closed"):
                service.with_options(idempotency_key=key).call(pay, "DE-17")
        closed.clear()
        assert store.dlq.replay(service.replay_target(pay), dry_run=False).reprocessed == 2
        assert sorted(sent) == ["invoice-1", "invoice-2"]

    def test_requests_of_two_idempotency_keys_are_two_letters(self, store, bank, server):
        with httpx.Client(transport=bank.httpx_transport(), base_url=server.url) as client:
            for key in ("invoice-1", "invoice-2", "invoice-2"):
                client.post("/orders/1", json={"fee": "N/A"}, headers={"Idempotency-Key": key})
        assert {one.record["idempotency_key"]: one.seen for one in letters(store)} == {"invoice-1": 1, "invoice-2": 2}


class TestGeneratedKeys:
    """The reply to a call was lost: its replay sends the same generated key."""

    @pytest.fixture
    def payments(self):
        keys = []

        def answer(request):
            keys.append(request.headers.get("idempotency-key"))
            return httpx.Response(503 if len(keys) == 1 else 200)

        return keys, httpx.MockTransport(answer)

    def test_replay_sends_the_key_that_a_function_was_given(self, store, bank):
        sent = []

        @bank
        def pay(account, *, idempotency_key):
            sent.append(idempotency_key)
            if len(sent) == 1:
                raise TimeoutError("no answer")

        with pytest.raises(TimeoutError):
            pay("DE-17")
        assert store.dlq.replay(bank.replay_target(pay), dry_run=False).reprocessed == 1
        assert sent == [sent[0]] * 2

    def test_replay_sends_the_keys_of_requests_in_a_function(self, store, payments):
        keys, transport = payments
        bank = redrive.Service(
            "bank", retry=ONCE, breaker=None, idempotent="key", dead_letters=store, pipeline="payments"
        )
        with httpx.Client(transport=bank.httpx_transport(transport)) as client:

            @bank
            def pay(account):
                client.post("http://bank/payments", json={"account": account}).raise_for_status()

            with pytest.raises(httpx.HTTPStatusError):
                pay("DE-17")
            assert store.dlq.replay(bank.replay_target(pay), dry_run=False).reprocessed == 1
        assert keys == [keys[0]] * 2
        assert keys[0] is not None

    @pytest.mark.parametrize("fields", [(), ("account",)])
    def test_equal_calls_are_one_letter_with_the_newest_key(self, store_url, fields):
        with redrive.connect(store_url, redact=fields, store_redacted=bool(fields)) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            for account in ("DE-17", "DE-17", "DE-18"):
                with pytest.raises(TimeoutError):
                    bank.call(order, account=account)
            found = {letter.record["generated_key"]: letter.seen for letter in letters(store)}
        assert found == {paid[1]: 2, paid[2]: 1}


class TestReplayDuringAnOutage:
    """The service is down, and the call is not the cause: unsent letters stay pending."""

    @pytest.fixture
    def calls(self, store):
        service = redrive.Service("bank", retry=ONCE, dead_letters=store, pipeline="payments")
        outage, sent = [ConnectionRefusedError("down"), 0, 30], []  # with the first and last call that fail

        @service
        def pay(number):
            if outage and outage[1] <= number <= outage[2]:
                raise outage[0]
            sent.append(number)

        for number in range(30):
            with pytest.raises((ConnectionRefusedError, redrive.CircuitOpen)):
                pay(number)
        return service.replay_target(pay), service, outage, sent

    @pytest.mark.parametrize("due", [None, redrive.Schedule(tries=1, first=0.000001, factor=1)])
    def test_open_circuit_stops_the_replay(self, store, calls, due):
        with pytest.raises(redrive.ReplayStopped, match="circuit is open") as stopped:
            store.dlq.replay(calls[0], dry_run=False, due=due)
        assert stopped.value.report.failed_again == 0
        assert store.dlq.count_by_status() == {"pending": 30}

    def test_fallback_result_resolves_no_letter(self, store):
        service = redrive.Service("payer", retry=ONCE, dead_letters=store, fallback="queued")
        errors = iter([ValueError("bad amount"), ConnectionRefusedError("down")])

        def pay(number):
            raise next(errors)

        with pytest.raises(ValueError, match="bad amount"):
            service.call(pay, 1)
        with pytest.raises(redrive.ReplayStopped, match="down"):
            store.dlq.replay(service.replay_target(pay), dry_run=False)
        assert store.dlq.count_by_status() == {"pending": 1}

    @pytest.mark.parametrize("error", [ConnectionRefusedError("down"), UNAUTHORIZED, redrive.RateLimited("slow down")])
    def test_calls_before_the_outage_are_made_once(self, store, calls, error):
        target, service, outage, sent = calls
        service.reset()
        outage[:] = [error, 7, 30]
        with pytest.raises(redrive.ReplayStopped) as stopped:
            store.dlq.replay(target, dry_run=False, canary=0)
        assert stopped.value.report.reprocessed == 7
        assert store.dlq.count_by_status() == {"pending": 23, "reprocessed": 7}
        service.reset()
        outage.clear()
        assert store.dlq.replay(target, dry_run=False).reprocessed == 23
        assert sorted(sent) == list(range(30))

    @pytest.mark.parametrize("bad", [0, 7, 29])
    def test_call_that_always_ends_in_503_escalates_alone(self, store, calls, bad):
        target, service, outage, sent = calls
        service.reset()
        outage[:] = [UNAVAILABLE, bad, bad]
        report = store.dlq.replay(target, dry_run=False)
        assert (report.reprocessed, report.failed_again) == (29, 1)
        assert sorted(sent) == [number for number in range(30) if number != bad]
        assert store.dlq.count_by_status() == {"reprocessed": 29, "escalated": 1}

    def test_outage_without_a_breaker_stops_the_replay(self, store, bank):
        outage, made = [True], []

        def pay(number):
            made.append(number)
            if outage:
                raise ConnectionRefusedError("down")

        for number in range(30):
            with pytest.raises(ConnectionRefusedError):
                bank.call(pay, number)
        made.clear()
        with pytest.raises(redrive.ReplayStopped, match="down"):
            store.dlq.replay(bank.replay_target(pay), dry_run=False)
        assert (len(made), store.dlq.count_by_status()) == (5, {"pending": 30})

    def test_rejected_call_escalates_alone(self, store, calls):
        target, service, outage, _ = calls
        service.reset()
        outage[:] = [ValueError("no such account"), 29, 29]
        report = store.dlq.replay(target, dry_run=False)
        assert (report.reprocessed, report.failed_again) == (29, 1)


class TestRequests:
    def test_failed_response_of_a_replay_is_not_reprocessed(self, store, bank, server):
        @bank
        def order(number):
            return httpx.get(f"{server.url}/orders/{number}")

        assert order(1).status_code == 422
        report = store.dlq.replay(bank.replay_target(order), dry_run=False)
        assert (report.reprocessed, report.failed_again) == (0, 1)
        [letter] = letters(store)
        assert (letter.status, "fee: not a number" in letter.note) == ("escalated", True)

    def test_response_text_reaches_letters_and_ids_make_one_cause(self, store, bank, server):
        def order(number):
            httpx.get(f"{server.url}/orders/{number}").raise_for_status()

        def order_by_requests(number):
            requests.get(f"{server.url}/orders/{number}", timeout=30).raise_for_status()

        for function in (order, order_by_requests):
            for number in (1, 2):
                with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)):
                    bank.call(function, number)
        assert all("fee: not a number" in letter.error_message.partition("\n")[0] for letter in letters(store))
        assert len(store.dlq.causes(pipeline="payments")) == 2

    @pytest.mark.parametrize("library", ["httpx", "requests"])
    def test_rejected_request_becomes_a_letter(self, store, bank, server, library):
        if library == "httpx":
            with httpx.Client(transport=bank.httpx_transport(), base_url=server.url) as client:
                for number in (1, 2):
                    client.post(f"/orders/{number}?token=s3cret-s3cret", json={"fee": "N/A"})
        else:
            with requests.Session() as session:
                session.mount("http://", bank.requests_adapter())
                for number in (1, 2):
                    session.post(f"{server.url}/orders/{number}?token=s3cret-s3cret", json={"fee": "N/A"})
        first, _ = letters(store)
        assert first.record["method"] == "POST"
        assert "s3cret" not in str(first.record)
        assert '"fee"' in first.record["body"]
        assert "fee: not a number" in first.error_message
        [cause] = store.dlq.causes(pipeline="payments")
        assert cause.count == 2


def test_wrong_options_are_rejected(store):
    with pytest.raises(TypeError, match=r"dead_letters must be what redrive.connect\(\) returns"):
        redrive.Service("bank", dead_letters="sqlite:///x.db")
    with pytest.raises(ValueError, match="pipeline names the letters"):
        redrive.Service("bank", pipeline="payments")
    with pytest.raises(ValueError, match='on_discard must be "raise" or "none"'):
        redrive.Service("bank", on_discard=None)


class TestArgumentsReadOnce:
    @pytest.mark.parametrize("make", [lambda: iter([1]), lambda: {"files": [io.BytesIO(b"1")]}])
    def test_replay_rejects_the_call_until_it_is_edited(self, store, bank, make):
        closed, given = [True], []

        @bank
        def load(rows):
            if closed:
                raise ValueError("closed")
            given.append(rows)

        for _ in range(2):
            with pytest.raises(ValueError, match="closed"):
                load(make())
        closed.clear()
        assert [letter.seen for letter in letters(store)] == [1, 1]
        report = store.dlq.replay(bank.replay_target(load), dry_run=False)
        assert (given, report.reprocessed, report.failed_again) == ([], 0, 2)
        letter = letters(store)[0]
        assert "can be read only once" in letter.last_error
        store.dlq.edit(letter.id, patch={"args": [[1]], "argument_missing": None})
        report = store.dlq.replay(bank.replay_target(load), ids=[letter.id], status="escalated", dry_run=False)
        assert (given, report.reprocessed) == ([[1]], 1)


class Rows(Sequence):
    """A collection of our own, of which a record has only the text."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return ["a"][index]


def a_mail():
    message = EmailMessage()
    message["Subject"] = "invoice 17"
    message.set_content("pay 12.50 until Friday")
    return message


class TestArgumentsOfOtherTypes:
    @pytest.mark.parametrize(
        "rows", [{"a": 1}.keys(), {1: "a"}.values(), range(3), array.array("i", [1, 2]), UserList([1])]
    )
    def test_collection_is_replayed_as_a_list(self, store, bank, rows):
        given = []

        @bank
        def load(rows):
            given.append(rows)
            if len(given) == 1:
                raise ValueError("closed")

        with pytest.raises(ValueError, match="closed"):
            load(rows)
        assert store.dlq.replay(bank.replay_target(load), dry_run=False).reprocessed == 1
        assert given[1] == list(rows)

    @pytest.mark.parametrize(
        "rows", [Rows(), [Rows()], range(10**9), object(), a_mail(), ElementTree.fromstring("<a><fee>1</fee></a>")]
    )
    def test_replay_rejects_arguments_stored_as_text(self, store, bank, rows):
        given = []

        @bank
        def load(rows):
            given.append(rows)
            raise ValueError("closed")

        for _ in range(2):
            with pytest.raises(ValueError, match="closed"):
                load(rows)
        report = store.dlq.replay(bank.replay_target(load), dry_run=False)
        assert (len(given), report.reprocessed, report.failed_again) == (2, 0, 2)
        assert "has only the text" in letters(store)[0].last_error


class TestUploads:
    """The letter holds the body, or a note that it does not."""

    @pytest.fixture
    def server(self):
        with FaultyServer() as server:
            server.on("/upload", Answer(422, json={"detail": "no such customer: pat@bank.example"}))
            yield server

    @pytest.fixture(params=["httpx", "requests"])
    def upload(self, request, bank, server):
        """Sends a POST with a body of the given kind."""
        client = httpx.Client(transport=bank.httpx_transport())
        session = requests.Session()
        session.mount("http://", bank.requests_adapter())

        def send(kind, order):
            content = f"order {order}".encode()
            made = {"file": io.BytesIO, "generator": lambda content: iter([content])}
            if kind == "form":
                options = {"files": {"file": ("o.csv", content)}, "data": {"email": "pat@bank.example"}}
            else:
                options = {"content" if request.param == "httpx" else "data": made[kind](content)}
            (client if request.param == "httpx" else session).post(server.url + "/upload", **options)

        yield send
        client.close()
        session.close()

    @pytest.mark.parametrize("kind", ["form", "file"])
    def test_replayed_upload_has_its_body(self, store, server, upload, kind):
        for order in (1, 2):
            upload(kind, order)
        assert len(letters(store)) == 2
        server.on("/upload", Answer(201))

        def parts(request):
            """Return the body without the boundary of a form, which is another one in a letter."""
            boundary = request.headers.get("content-type", "").partition("boundary=")[2]
            return request.body.replace(boundary.encode(), b"") if boundary else request.body

        sent = [parts(request) for request in server.requests]

        def resend(records):
            for record in records:
                headers = {"Content-Type": record["content_type"]} if record["content_type"] else {}
                httpx.post(record["url"], content=record["body"], headers=headers).raise_for_status()

        report = store.dlq.replay(resend, pipeline="payments", dry_run=False)
        assert report.reprocessed == 2
        assert sorted(parts(request) for request in server.requests[2:]) == sorted(sent)

    def test_uploads_without_a_body_are_letters_of_their_own(self, store, upload, caplog):
        for order in (1, 2, 3):
            upload("generator", order)
        assert [letter.seen for letter in letters(store)] == [1, 1, 1]
        assert all("only once" in letter.record["body_missing"] for letter in letters(store))
        assert caplog.text.count("is not complete") == 1

    def test_replay_rejects_an_upload_without_a_body(self, store, upload):
        upload("generator", 1)
        sent = []
        report = store.dlq.replay(sent.extend, pipeline="payments", dry_run=False)
        assert (sent, report.reprocessed, report.failed_again) == ([], 0, 1)
        [letter] = letters(store)
        assert "the record has no body" in letter.last_error
        store.dlq.edit(letter.id, patch={"body": "order 1"})
        report = store.dlq.replay(sent.extend, pipeline="payments", status="escalated", dry_run=False)
        assert report.reprocessed == 1
        assert [record["body"] for record in sent] == ["order 1"]

    def test_removed_note_does_not_replace_a_body(self, store, upload):
        upload("generator", 1)
        [letter] = letters(store)
        store.dlq.edit(letter.id, patch={"body_missing": None})
        sent = []
        report = store.dlq.replay(sent.extend, pipeline="payments", dry_run=False)
        assert (sent, report.failed_again) == ([], 1)
        store.dlq.edit(letter.id, patch={"body": ""})
        report = store.dlq.replay(sent.extend, pipeline="payments", status="escalated", dry_run=False)
        assert (len(sent), report.reprocessed) == (1, 1)

    def test_replay_rejects_a_form_of_an_older_version(self, store):
        record = {"method": "POST", "url": "http://bank/x", "content_type": "multipart/form-data; boundary=x"}
        store.dlq.put({**record, "body": None}, "503", pipeline="payments", error_type="call")
        report = store.dlq.replay(lambda _: None, pipeline="payments", dry_run=False)
        assert (report.reprocessed, report.failed_again) == (0, 1)

    @pytest.mark.parametrize("library", ["httpx", "requests"])
    @pytest.mark.parametrize("kind", ["form", "generator"])
    def test_message_shows_no_redacted_field(self, store_url, server, library, kind):
        with redrive.connect(store_url, redact=["email"]) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            data = {"email": "pat@bank.example"}
            if library == "httpx":
                body = {"data": data, "files": {"f": b"x"}} if kind == "form" else {"content": iter([b"x"])}
                with httpx.Client(transport=bank.httpx_transport()) as client:
                    client.post(server.url + "/upload", **body)
            else:
                body = {"data": data, "files": {"f": b"x"}} if kind == "form" else {"data": iter([b"x"])}
                with requests.Session() as session:
                    session.mount("http://", bank.requests_adapter())
                    session.post(server.url + "/upload", **body)
            [letter] = letters(store)
        assert "422" in letter.error_message
        assert "pat@bank.example" not in letter.error_message


class TestUnreadableBodies:
    """A body that cannot be masked by field is masked whole, and the server's text is omitted."""

    BODIES = ("email,id\npat@bank.example,1", "<email>pat@bank.example</email>", '{"email": "pat@bank.example",}')

    @pytest.fixture
    def masking(self, store_url):
        with redrive.connect(store_url, redact=["email"], store_redacted=True) as store:
            yield store

    @pytest.mark.parametrize("body", BODIES)
    def test_body_is_neither_stored_nor_logged(self, masking, server, body, caplog):
        caplog.set_level("DEBUG", "redrive")
        server.on("/upload", Answer(422, json={"detail": "no such customer: pat@bank.example"}))
        bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=masking, pipeline="payments")
        with httpx.Client(transport=bank.httpx_transport()) as client:
            client.post(server.url + "/upload", content=body)
        [letter] = letters(masking)
        assert letter.record["body"] == f"*** ({len(body)} characters)"
        assert "422" in letter.error_message
        assert "422" in caplog.text
        assert "pat@" not in letter.error_message + caplog.text

    def test_error_text_of_a_call_without_arguments_is_omitted(self, masking):
        def load(rows):
            raise ValueError("no such customer: pat@bank.example")

        bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=masking, pipeline="payments")
        with pytest.raises(ValueError, match="no such"):
            bank.call(load, iter([{"email": "pat@bank.example"}]))
        [letter] = letters(masking)
        assert letter.error_message.startswith("ValueError: ")
        assert "pat@" not in letter.error_message

    def test_failed_replay_shows_nothing_of_the_body(self, store_url, server):
        server.on("/upload", Answer(422))
        with redrive.connect(store_url, redact=["email"]) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            with httpx.Client(transport=bank.httpx_transport()) as client:
                client.post(server.url + "/upload", content=self.BODIES[0])

            def fail(records):
                raise ValueError(f"refused: {records[0]['body'][9:]}")

            report = store.dlq.replay(fail, pipeline="payments", dry_run=False)
            [letter] = letters(store)
        assert report.failed_again == 1
        assert "message is left out" in letter.last_error
        assert "pat@" not in letter.last_error


class TestRedactedFields:
    @pytest.mark.parametrize("field", ["customer.email", "*.email"])
    def test_path_begins_at_the_body_or_an_argument(self, store_url, server, field):
        def refuse(*args, **kwargs):
            raise ValueError("no such customer: pat@bank.example")

        customer = {"customer": {"email": "pat@bank.example", "id": 7}}
        with redrive.connect(store_url, redact=[field]) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            with httpx.Client(transport=bank.httpx_transport(), base_url=server.url) as client:
                client.post("/orders/1", json=customer)
                client.post("/orders/1", data={"customer[email]": "pat@bank.example"})
                client.post("/orders/1", params={"customer[email]": "pat@bank.example"})
            for args, kwargs in [((), customer), ((customer,), {}), ((), {"order": customer})]:
                with pytest.raises(ValueError, match="no such"):
                    bank.call(refuse, *args, **kwargs)
            kept = letters(store)
            shown = [repr(store.dlq.redactor.record(letter.record)) + letter.error_message for letter in kept]
        assert len(shown) == 6
        assert all("***" in text and "pat@" not in text and "pat%40" not in text for text in shown)

    @pytest.mark.parametrize("store_redacted", [False, True])
    @pytest.mark.parametrize("library", ["httpx", "requests"])
    @pytest.mark.parametrize(
        "sent",
        [
            {"json": {"card": {"number": "4000-Xq7"}}},
            {"json": {"card.number": "4000-Xq7"}},
            {"data": {"card[number]": "4000-Xq7"}},
            {"data": {"card.number": "4000-Xq7"}},
            {"data": {"card[number]": "4000-Xq7"}, "files": {"plan": ("plan.txt", b'{"id": 1}', "application/json")}},
            {"files": {"card[scan]": ("4000-Xq7.png", b"4000-Xq7", "image/png")}},
            {"params": {"card[number]": "4000-Xq7"}},
        ],
    )
    def test_all_below_a_named_field_is_masked(self, store_url, server, library, sent, store_redacted):
        server.on("/charges", Answer(422, json={"detail": "no such card: 4000-Xq7"}))
        with redrive.connect(store_url, redact=["card"], store_redacted=store_redacted) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            if library == "httpx":
                with httpx.Client(transport=bank.httpx_transport()) as client:
                    client.post(f"{server.url}/charges", **sent)
            else:
                with requests.Session() as session:
                    session.mount("http://", bank.requests_adapter())
                    session.post(f"{server.url}/charges", **sent)
            [letter] = letters(store)
            shown = letter.record if store_redacted else store.dlq.redactor.record(letter.record)
        assert letter.error_message.endswith("no such card: ***")
        assert "***" in str(shown)
        assert "Xq7" not in str(shown)

    @pytest.mark.parametrize("store_redacted", [False, True])
    def test_text_of_an_object_is_masked(self, store_url, store_redacted):
        class Customer:
            def __repr__(self):
                return "Customer(email='pat@bank.example')"

        def check(customer):
            raise ValueError(f"rejected {customer}")

        with redrive.connect(store_url, redact=["email"], store_redacted=store_redacted) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            with pytest.raises(ValueError, match="rejected"):
                bank.call(check, Customer())
            [letter] = letters(store)
            shown = store.dlq.redactor.record(letter.record)
        assert shown["args"] == ["*** (34 characters)"]
        assert "pat@" not in str(shown) + letter.error_message

    def test_path_of_a_row_begins_at_its_top(self, store_url):
        with redrive.connect(store_url, redact=["customer.email"]) as store:
            record = {"body": {"customer": {"email": "pat@bank.example"}}}
            assert store.dlq.redactor.record(record) == record

    def test_form_bodies_and_urls_are_stored_masked(self, store_url, server):
        server.on("/pay", Answer(400))
        with redrive.connect(store_url, redact=["card_number"], store_redacted=True) as store:
            bank = redrive.Service("bank", retry=ONCE, breaker=None, dead_letters=store, pipeline="payments")
            with httpx.Client(transport=bank.httpx_transport()) as client:
                client.post(f"{server.url}/pay?card_number=4000", data={"card_number": "41112222", "a": "1"})
            [letter] = letters(store)
        assert letter.record["body"] == "card_number=***&a=1"
        assert letter.record["url"] == f"{server.url}/pay?card_number=***"
