"""Pages that cannot be fetched: retried, quarantined, or the end of the run, depending on the fault."""

import json

import httpx
import pytest

import redrive
from redrive import Breaker, Retry, Service, rows
from redrive.errors import SourceError
from redrive.model.letters import ErrorType
from redrive.testing import Answer, FakeClock, FaultyServer, set_testing

LAST = 9


@pytest.fixture(autouse=True)
def without_waiting():
    with set_testing():
        yield


@pytest.fixture
def server():
    with FaultyServer() as server:
        server.on("/pages/*", lambda request: page(int(request.path.rsplit("/", 1)[1])))
        yield server


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture
def service():
    return Service("partner", breaker=None, budget=None)


@pytest.fixture(params=["response", "raise_for_status", "json"])
def fetch(client, request):
    """The three common ways to write it."""
    return {
        "response": lambda page: client.get(f"/pages/{page}"),
        "raise_for_status": lambda page: client.get(f"/pages/{page}").raise_for_status(),
        "json": lambda page: client.get(f"/pages/{page}").raise_for_status().json(),
    }[request.param]


def items(page):
    return [{"id": 10 * page}, {"id": 10 * page + 1}] if page <= LAST else []


def page(number):
    return Answer(json={"items": items(number)})


def rows_of(*numbers):
    return [row for number in numbers for row in items(number)]


def read_all(source, most=1_000, position=None):
    """Rows, what was unreadable, and where the reading stood."""
    reading = source.open(position, source.identity())
    found, unreadable, stands = [], [], position
    try:
        while (batch := reading.read(most)) is not None:
            found += batch.rows.records
            unreadable += batch.unreadable
            stands = batch.next
    except Exception as error:
        return found, unreadable, stands, error
    finally:
        reading.close()
    return found, unreadable, stands, None


ALL = list(range(1, LAST + 1))

ONCE = [
    Answer(503),
    Answer(500),
    Answer(429, retry_after=1),
    Answer(reset="before"),
    Answer(json={"items": [{"id": n} for n in range(99)]}, reset="mid-body"),
    Answer(json={"items": [{"id": n} for n in range(99)]}, truncate=True),
]


@pytest.mark.parametrize("fault", ONCE, ids=lambda answer: f"{answer.outcome} {'cut' if answer.truncate else ''}")
def test_single_failure_is_invisible(server, service, fetch, fault):
    server.on("/pages/3", fault, page(3))
    found, unreadable, _, error = read_all(rows.pages(service, fetch))
    assert (found, unreadable, error) == (rows_of(*ALL), [], None)
    assert server.count("/pages/3") == 2


def test_object_without_its_list_is_fetched_again(server, client, service):
    server.on("/pages/3", Answer(json={"error": "try later"}), page(3))
    found, *_ = read_all(rows.pages(service, lambda page: client.get(f"/pages/{page}")))
    assert found == rows_of(*ALL)


# ── quarantine ────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_FOR_EVER = {
    "no JSON": (Answer(body="<html>oops"), "JSON: Expecting value", "<html>oops"),
    "cut short": (Answer(json=[{"id": 1}], truncate=True), "", '[{"id'),
    "not UTF-8": (Answer(body=b'[{"id": "\xff"}]'), "", b'[{"id": "\xff"}]'),
    "missing": (Answer(404, json={"error": "no such page"}), "404", '{"error": "no such page"}'),
    "gone": (Answer(410), "410", ""),
    "broken": (Answer(500, body="stack trace"), "500", "stack trace"),
    "unavailable": (Answer(503), "503", ""),
}


@pytest.mark.parametrize("fault", BAD_FOR_EVER)
def test_page_that_stays_bad_is_one_letter(server, service, fetch, fault):
    answer, _, body = BAD_FOR_EVER[fault]
    server.on("/pages/3", answer)
    found, unreadable, _, error = read_all(rows.pages(service, fetch, bad_page="quarantine"))
    assert error is None
    assert found == rows_of(1, 2, *range(4, LAST + 1))
    (lost,) = unreadable
    assert lost.raw == {"page": 3, "service": "partner", "body": body}
    assert (lost.position, lost.error_type, lost.rows) == ("page 3", ErrorType.PAGE, 2)
    assert isinstance(lost.error, Exception)


@pytest.mark.parametrize("fault", BAD_FOR_EVER)
def test_bad_page_stops_the_run_by_default_and_it_resumes_there(server, service, fetch, fault):
    answer, said, _ = BAD_FOR_EVER[fault]
    server.on("/pages/3", answer, *[answer] * 4, page(3))
    source = rows.pages(service, fetch)
    found, unreadable, stands, error = read_all(source)
    assert (found, unreadable) == (rows_of(1, 2), [])
    heals = fault in ("broken", "unavailable")
    assert isinstance(error, SourceError) is not heals
    told = f"{error} {''.join(getattr(error, '__notes__', ()))}"
    assert "page 3 of 'partner'" in told
    assert said in told
    assert stands == {"token": 3, "pages": 2}
    server.on("/pages/3", page(3))
    assert read_all(source, position=json.loads(json.dumps(stands)))[0] == rows_of(*range(3, LAST + 1))


class TestPageReplay:
    """The letter names a page, and its rows are those of the page only as long as no page has moved."""

    @pytest.fixture
    def source(self, client, service):
        def make(**options):
            return rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine", **options)

        return make

    @pytest.fixture
    def lose(self, server):
        """Read a source whose page 3 is malformed; return the letter as it is stored."""

        def lose(source):
            server.on("/pages/3", Answer(body="oops"))
            (lost,) = read_all(source)[1]
            server.on("/pages/3", page(3))
            return json.loads(json.dumps([lost.raw, lost.context]))

        return lose

    def test_page_of_the_same_pages_is_fetched_again(self, server, source, lose):
        raw, context = lose(source())
        server.on("/pages/3", Answer(body="oops"))
        with pytest.raises(ValueError, match="the page is still malformed: the body is no JSON"):
            source().again(raw, context)
        server.on("/pages/3", Answer(503))
        with pytest.raises(redrive.RetriesExhausted):
            source().again(raw, context)
        server.on("/pages/3", Answer(json=[{"id": 1}, "what?"]))
        with pytest.raises(TypeError, match="must be an object"):
            source().again(raw, context)
        server.on("/pages/3", page(3))
        assert source().again(raw, context) == items(3)

    @pytest.mark.parametrize("first", [Answer(json=items(2)), Answer(json=[{"id": 9}, *items(1)]), Answer(404)])
    def test_page_is_rejected_when_the_first_page_differs(self, server, source, lose, first):
        raw, context = lose(source())
        server.on("/pages/1", first)
        with pytest.raises(SourceError, match=r"page 3 of 'partner' may hold other rows .* first page.*Run"):
            source().again(raw, context)

    def test_pages_that_move_between_the_fetches_are_noticed(self, server, source, lose):
        raw, context = lose(source())

        def moving(request):
            server.on("/pages/1", Answer(json=items(0)))
            return page(3)

        server.on("/pages/3", moving)
        with pytest.raises(SourceError, match="may hold other rows"):
            source().again(raw, context)

    def test_unreachable_first_page_rejects_nothing(self, server, source, lose):
        raw, context = lose(source())
        server.on("/pages/1", Answer(503))
        with pytest.raises(redrive.RetriesExhausted):
            source().again(raw, context)

    @pytest.mark.parametrize(("day", "is_fetched"), [("1 July", True), ("2 July", False), (None, False)])
    def test_declared_identity_decides(self, server, source, lose, day, is_fetched):
        raw, context = lose(source(identity="1 July"))
        server.on("/pages/1", Answer(json=items(2)))
        if is_fetched:
            assert source(identity=day).again(raw, context) == items(3)
        else:
            with pytest.raises(SourceError, match="its identity was '1 July', and now it is"):
                source(identity=day).again(raw, context)

    @pytest.mark.parametrize("identity", [None, "1 July"])
    def test_empty_page_is_rejected(self, server, source, lose, identity):
        raw, context = lose(source(identity=identity))
        server.on("/pages/3", Answer(json=[]))
        with pytest.raises(SourceError, match="page 3 of 'partner' is empty now: its rows may be on another page"):
            source(identity=identity).again(raw, context)

    def test_pages_of_another_size_are_rejected(self, source, lose):
        raw, context = lose(source(size=2))
        with pytest.raises(SourceError, match="its pages had a size of 2, these of 1"):
            source(size=1).again(raw, context)

    def test_page_without_anything_to_compare_is_rejected(self, server, source, lose):
        with pytest.raises(SourceError, match="the letter does not have the first page"):
            source().again(lose(source())[0])
        server.on("/pages/1", Answer(body="oops"))
        server.on("/pages/3", page(3))
        (lost,) = read_all(source())[1]
        for first in (Answer(body="oops"), page(1)):
            server.on("/pages/1", first)
            with pytest.raises(SourceError, match="the first page of its run was lost as well"):
                source().again({**lost.raw, "page": 3}, lost.context)

    def test_letter_of_moved_pages_stays_open(self, server, source, tmp_path):
        store = redrive.connect(tmp_path / "store.db")
        server.on("/pages/3", Answer(body="oops"))
        sink = rows.table(f"sqlite:///{tmp_path}/out.db", "t", key="id", create=True)
        pipeline = redrive.Pipeline("vendor", source=source(), sink=sink, store=store, gate=redrive.Gate(abort=1))
        assert pipeline.run().written == 2 * (LAST - 1)
        for number in (1, 3):
            server.on(f"/pages/{number}", page(number + 1))
        report = store.dlq.replay(pipeline, dry_run=False)
        assert (report.reprocessed, report.discarded, report.failed_again) == (0, 0, 1)
        for number in (1, 3):
            server.on(f"/pages/{number}", page(number))
        report = store.dlq.replay(pipeline, dry_run=False)
        assert (report.reprocessed, report.discarded, report.failed_again) == (1, 0, 0)


def test_body_is_stored_up_to_a_million_characters(service):
    source = rows.pages(service, lambda page: "x" * 3_000_000 if page == 1 else [], bad_page="quarantine")
    (lost,) = read_all(source)[1]
    assert lost.raw["body"] == "x" * 1_000_000


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("null", "the page is null, not a list"),
        ('"text"', "the page is a text, not a list"),
        ({"items": None}, "'items' is null, not a list"),
        ({"data": None, "errors": ["boom"]}, "'data' is null, not a list"),
        ({"errors": ["boom"]}, "there is no list in the page (it has 'errors')"),
        ({}, "there is no list in the page (it is empty)"),
        ("[" * 100_000, "the body is no JSON: maximum recursion depth exceeded"),
    ],
)
def test_letter_has_the_fault_of_the_page(service, given, sentence):
    source = rows.pages(service, lambda page: given if page == 1 else [], bad_page="quarantine")
    (lost,) = read_all(source)[1]
    assert sentence in str(lost.error)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("data.rows", "there is no 'data.rows' in the page"),
        ("data", "'data' is an object, not a list"),
        (lambda page: page["rows"], "items raised KeyError: 'rows'"),
        (lambda page: 7, "what items gave is a number, not a list"),
    ],
)
def test_page_without_the_named_list_is_malformed(service, where, sentence):
    _, unreadable, _, _ = read_all(
        rows.pages(service, lambda page: {"data": {"x": page}}, items=where, bad_page="quarantine", limit=2)
    )
    assert [sentence in str(lost.error) for lost in unreadable] == [True, True]


HTML = Answer(body="<html>")
NULL = Answer(json={"items": None})
SENTENCE = Answer(json={"message": "page out of range"})
BAD = {
    "pages without JSON": [HTML, HTML, HTML],
    "pages without a list": [NULL, NULL, NULL],
    "pages that say something else": [SENTENCE, SENTENCE, SENTENCE],
    "pages that fetch rejects": [Answer(418)] * 3,
    "pages of several faults": [HTML, Answer(404), NULL],
}


class TestConsecutiveBadPages:
    """Two of them are set aside; with a third one no page is to blame, and nothing is set aside."""

    def read(self, server, client, service, answers, first=5, **options):
        for number, answer in enumerate(answers, first):
            server.on(f"/pages/{number}", answer)

        def fetch(page):
            response = client.get(f"/pages/{page}")
            if response.status_code == 418:
                raise ValueError("a teapot has no rows")
            return response

        source = rows.pages(service, fetch, bad_page="quarantine", **options)
        found, unreadable, stands, error = read_all(source)
        return found, [lost.raw["page"] for lost in unreadable], stands, error

    @pytest.mark.parametrize("in_flight", [1, 4])
    @pytest.mark.parametrize("answers", BAD.values(), ids=BAD)
    def test_stop_the_reading_if_there_are_three(self, server, client, service, answers, in_flight):
        server.on("/pages/3", HTML)
        found, lost, stands, error = self.read(server, client, service, answers, in_flight=in_flight)
        assert isinstance(error, SourceError)
        assert "the two pages after it" in str(error)
        assert (found, lost, stands["token"]) == (rows_of(1, 2, 4), [3], 5)

    @pytest.mark.parametrize("answers", BAD.values(), ids=BAD)
    def test_are_quarantined_if_there_are_two(self, server, client, service, answers):
        found, lost, _, error = self.read(server, client, service, answers[::2])
        assert error is None
        assert (found, lost) == (rows_of(1, 2, 3, 4, 7, 8, 9), [5, 6])

    @pytest.mark.parametrize("bad", [[], [HTML], [HTML, NULL]])
    def test_are_quarantined_before_the_end(self, server, client, service, bad):
        server.on("/pages/*", lambda request: Answer(404))
        for number in (1, 2, 3, 4):
            server.on(f"/pages/{number}", page(number))
        found, lost, _, error = self.read(server, client, service, bad)
        assert error is None
        assert (found, lost) == (rows_of(1, 2, 3, 4), [5, 6][: len(bad)])

    def test_are_quarantined_up_to_the_limit(self, server, client, service):
        found, lost, _, error = self.read(server, client, service, [HTML] * 3, limit=6)
        assert error is None
        assert (found, lost) == (rows_of(1, 2, 3, 4), [5, 6])

    @pytest.mark.parametrize("behind", [NULL, SENTENCE, HTML, Answer(400), Answer(422), Answer(500)])
    def test_behind_the_last_page_fail_the_run(self, server, client, service, tmp_path, behind):
        server.on("/pages/*", lambda request: behind)
        for number in ALL:
            server.on(f"/pages/{number}", page(number))
        pipeline = redrive.Pipeline(
            "p",
            source=rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine"),
            sink=rows.table(f"sqlite:///{tmp_path / 't.db'}", "t", key="id", create=True),
            gate=redrive.Gate(abort=1.0),
            store=tmp_path / "store.db",
        )
        for _ in range(2):
            with pytest.raises(redrive.RunStopped) as stopped:
                pipeline.run()
            report = stopped.value.report
            assert (report.status, report.read, report.rejected) == ("failed", 2 * LAST, 0)
        assert pipeline.store.dlq.count() == 0
        assert server.count(f"/pages/{LAST + 4}") == 0


def test_pages_without_a_list_do_not_open_the_circuit(server, client):
    for number in (2, 3, 5, 6):
        server.on(f"/pages/{number}", Answer(json={"error": "no such shop"}))
    service = Service("partner", breaker=Breaker(failures=2), retry=Retry(attempts=2), budget=None)
    found, unreadable, _, error = read_all(
        rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine")
    )
    assert error is None
    assert found == rows_of(1, 4, *range(7, LAST + 1))
    assert [lost.raw["page"] for lost in unreadable] == [2, 3, 5, 6]
    assert service.circuit == "closed"


def test_lost_page_is_the_last_of_its_batch(server, client, service):
    server.on("/pages/3", Answer(body="<html>"))
    source = rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine")
    reading = source.open(None, {})
    batch = reading.read(1_000)
    assert batch.rows.records == rows_of(1, 2)
    assert [lost.position for lost in batch.unreadable] == ["page 3"]
    assert (batch.next, batch.done) == ({"token": 4, "pages": 3}, 3)
    assert reading.read(1_000).position_of(0) == "page 4, item 1"


def test_fetch_may_reject_a_page_by_itself(service):
    def fetch(page):
        if page == 3:
            raise redrive.Reject("the signature is wrong")
        return items(page)

    found, (lost,), _, error = read_all(rows.pages(service, fetch, bad_page="quarantine"))
    assert (found, error) == (rows_of(1, 2, *range(4, LAST + 1)), None)
    assert str(lost.error) == "the signature is wrong"


def test_bad_page_with_a_cursor_stops_the_run(service):
    def fetch(cursor):
        if cursor == 3:
            return "no JSON"
        return {"items": items(cursor or 1), "next": (cursor or 1) + 1}

    found, unreadable, stands, error = read_all(rows.pages(service, fetch, by="cursor", bad_page="quarantine"))
    assert (found, unreadable, stands) == (rows_of(1, 2), [], {"token": 3, "pages": 2})
    assert isinstance(error, SourceError)
    assert "only this page has the next cursor" in str(error)


def test_last_page_may_be_lost(server, service, fetch):
    server.on(f"/pages/{LAST}", Answer(500))
    server.on(f"/pages/{LAST + 1}", Answer(404))
    server.on(f"/pages/{LAST + 2}", Answer(404))
    found, unreadable, _, error = read_all(rows.pages(service, fetch, bad_page="quarantine"))
    assert (found, error) == (rows_of(*ALL[:-1]), None)
    assert [lost.raw["page"] for lost in unreadable] == [LAST]


# ── a service that is down, and faults of no page ─────────────────────────────────────────────────────────────────────


class Reply:
    """A response of a library that redrive does not know."""

    def __init__(self, response):
        self.status_code = response.status_code
        self.json = response.json


def test_unknown_response_class_is_judged_by_its_status(server, service, client):
    server.on("/pages/3", Answer(503, json={"items": []}), page(3))
    found, _, _, error = read_all(rows.pages(service, lambda page: Reply(client.get(f"/pages/{page}"))))
    assert error is None
    assert found == rows_of(*range(1, LAST + 1))


@pytest.mark.parametrize("status", [500, 503])
def test_three_failing_pages_in_a_row_are_a_service_down(server, service, fetch, status):
    for number in (2, 3, 5, 6, 7):
        server.on(f"/pages/{number}", Answer(status))
    source = rows.pages(service, fetch, bad_page="quarantine")
    found, unreadable, stands, error = read_all(source)
    assert found == rows_of(1, 4)
    assert [lost.raw["page"] for lost in unreadable] == [2, 3]
    assert getattr(error, "response", None) is not None  # the error of the service or of the library, as it is
    assert stands["token"] == 5  # nothing was set aside for an outage
    assert server.count("/pages/8") == 0
    for number in (5, 6, 7):
        server.on(f"/pages/{number}", page(number))
    assert read_all(source, position=stands)[0] == rows_of(5, 6, 7, 8, 9)


def test_reading_may_continue_when_the_service_is_back(server, client, service):
    server.on("/pages/3", Answer(503))
    reading = rows.pages(service, lambda page: client.get(f"/pages/{page}")).open(None, {})
    assert reading.read(1_000).rows.records == rows_of(1, 2)
    for _ in range(2):
        with pytest.raises(redrive.RetriesExhausted) as stopped:
            reading.read(1_000)
        assert redrive.classify(stopped.value).kind == "transient"
    server.on("/pages/3", page(3))
    assert reading.read(1_000).rows.records == rows_of(*range(3, LAST + 1))
    assert reading.read(1_000) is None


def test_open_circuit_quarantines_no_page(server, client):
    clock = FakeClock()
    service = Service("partner", breaker=Breaker(failures=5, cooldown=30), clock=clock, retry=Retry(within=1e6))
    server.on("/pages/3", Answer(503))
    source = rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine")
    reading = source.open(None, {})
    batch = reading.read(1_000)
    # The page that the service failed on is bad: others succeeded. Nothing is known about page 4.
    assert (batch.rows.records, [lost.raw["page"] for lost in batch.unreadable]) == (rows_of(1, 2), [3])
    with pytest.raises(redrive.CircuitOpen):
        reading.read(1_000)
    assert server.count("/pages/4") == 0
    clock.advance(60)
    assert reading.read(1_000).rows.records == rows_of(*range(4, LAST + 1))


def test_new_run_in_an_outage_quarantines_nothing(server, client):
    service = Service("partner", breaker=Breaker(failures=5, rate=0))
    server.on("/pages/*", Answer(503))
    source = rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine")
    found, unreadable, stands, error = read_all(source, position={"token": 4, "pages": 3})
    assert (found, unreadable, stands["token"]) == ([], [], 4)
    assert redrive.classify(error).kind == "transient"


@pytest.mark.parametrize("bad_page", ["stop", "quarantine"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(401), "auth"),
        (Answer(403, json={"error": {"errors": [{"reason": "quotaExceeded"}]}}), "quota"),
        (Answer(403), "permanent"),
        (Answer(422), "permanent"),
    ],
    ids=["401", "403 quota", "403", "422"],
)
def test_failure_common_to_all_pages_stops_at_once(server, service, fetch, answer, kind, bad_page):
    server.on("/pages/3", answer)
    found, unreadable, stands, error = read_all(rows.pages(service, fetch, bad_page=bad_page))
    assert (found, unreadable, stands["token"]) == (rows_of(1, 2), [], 3)
    assert redrive.classify(error).kind == kind
    assert [request.path for request in server.requests] == ["/pages/1", "/pages/2", "/pages/3"]


def test_long_retry_after_stops_the_run(server, service, fetch):
    server.on("/pages/3", Answer(429, retry_after=3_600))
    found, unreadable, _, error = read_all(rows.pages(service, fetch, bad_page="quarantine"))
    assert (found, unreadable) == (rows_of(1, 2), [])
    assert redrive.classify(error).kind == "rate_limited"
    assert error.redrive.retry_in >= 3_600


def test_bug_in_fetch_is_raised_unchanged(service):
    def fetch(page):
        return items(page) if page < 3 else {}["bug"]

    found, unreadable, _, error = read_all(rows.pages(service, fetch, bad_page="quarantine"))
    assert (found, unreadable) == (rows_of(1, 2), [])
    assert type(error) is KeyError
    assert any("it was page 3 of 'partner'" in note for note in error.__notes__)


def test_interrupt_is_immediate(service):
    def fetch(page):
        raise KeyboardInterrupt

    reading = rows.pages(service, fetch).open(None, {})
    with pytest.raises(KeyboardInterrupt):
        reading.read(10)


# ── what is missing, and what is the end ──────────────────────────────────────────────────────────────────────────────


def test_single_missing_page_is_not_the_end(server, service, fetch):
    server.on("/pages/3", Answer(404))
    _, _, stands, error = read_all(rows.pages(service, fetch))
    assert isinstance(error, SourceError)
    assert stands["token"] == 3


def test_missing_page_as_the_end_must_be_configured(server, service, fetch):
    server.on("/pages/3", Answer(404))
    server.on("/pages/4", Answer(503))
    _, _, stands, error = read_all(rows.pages(service, fetch))
    assert redrive.classify(error).kind == "transient"
    assert stands["token"] == 3


def test_end_may_be_missing_at_the_limit(server, service, fetch):
    server.on("/pages/6", Answer(404))
    server.on("/pages/7", Answer(404))
    found, unreadable, _, error = read_all(rows.pages(service, fetch, limit=6, bad_page="quarantine"))
    assert (found, unreadable, error) == (rows_of(1, 2, 3, 4, 5), [], None)


class TestInterruptedCalls:
    """A page whose call had attempts left when the circuit opened, or when the retry budget was spent."""

    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture
    def service(self, clock):
        return Service("partner", breaker=Breaker(), retry=Retry(base=0.1), clock=clock)

    @pytest.fixture
    def source(self, service, client):
        return rows.pages(
            service, lambda page: client.get(f"/pages/{page}").raise_for_status(), bad_page="quarantine", in_flight=1
        )

    def test_opening_circuit_stops_run_at_page(self, server, source, clock):
        for number in range(2, 7):  # the fifth failure opens the circuit
            server.on(f"/pages/{number}", Answer(503), page(number))
        found, unreadable, stands, error = read_all(source)
        assert (found, unreadable, stands["token"]) == (rows_of(*range(1, 6)), [], 6)
        assert redrive.classify(error).kind == "transient"
        clock.advance(60)
        found, unreadable, _, error = read_all(source, position=stands)
        assert (found, unreadable, error) == (rows_of(*range(6, LAST + 1)), [], None)

    def test_page_that_stays_bad_is_quarantined_by_a_later_run(self, server, source, clock):
        for number in (2, 3):
            server.on(f"/pages/{number}", Answer(503), page(number))
        server.on("/pages/4", Answer(503))
        found, unreadable, stands, _ = read_all(source)
        assert (found, unreadable, stands["token"]) == (rows_of(1, 2, 3), [], 4)
        clock.advance(60)
        reading = source.open(stands, source.identity())
        assert [lost.raw["page"] for lost in reading.read(1_000).unreadable] == [4]
        reading.close()

    def test_exhausted_retry_budget_stops_run_at_page(self, server, client):
        service = Service("partner", breaker=None, budget=redrive.RetryBudget(ratio=0, reserve=0))
        server.on("/pages/3", Answer(503), page(3))
        source = rows.pages(service, lambda page: client.get(f"/pages/{page}"), bad_page="quarantine")
        found, unreadable, stands, error = read_all(source)
        assert (found, unreadable, stands["token"]) == (rows_of(1, 2), [], 3)
        assert error.redrive.cut_short
