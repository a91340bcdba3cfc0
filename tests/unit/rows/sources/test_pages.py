"""Pages of an API as rows, in order, resumed where the last run stopped."""

import json
import sqlite3
import threading

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive import Service, rows
from redrive.cli.exit_codes import exit_code
from redrive.errors import SourceError
from redrive.testing import Answer, set_testing

PAGES, SIZE = 23, 4


@pytest.fixture(autouse=True)
def without_waiting():
    with set_testing():
        yield


def item(number):
    return {"id": number, "fee": f"{number}.50"}


EVERYTHING = [item(number) for number in range(PAGES * SIZE)]


def page_of(page):
    """Pages from 1 on; behind the last they are empty."""
    return EVERYTHING[(page - 1) * SIZE : page * SIZE]


def serve(server):
    def answer(request):
        page = int(request.path.rsplit("/", 1)[1])
        return Answer(json={"items": page_of(page), "page": page})

    server.on("/pages/*", answer)


def batches(source, most=10, position=None):
    reading = source.open(position, source.identity())
    found = []
    while (batch := reading.read(most)) is not None:
        found.append(batch)
    reading.close()
    return found


def records(found):
    return [record for batch in found for record in batch.rows.records]


def by_number(client):
    return lambda page: client.get(f"/pages/{page}")


# ── the rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_row_of_every_page_is_read_once_and_in_order(server, client, service):
    serve(server)
    found = batches(rows.pages(service, by_number(client)))
    assert records(found) == EVERYTHING
    assert all(not batch.unreadable for batch in found)
    assert [request.path for request in server.requests] == [f"/pages/{page}" for page in range(1, PAGES + 3)]


def test_batch_has_whole_pages_up_to_its_size(server, client, service):
    serve(server)
    found = batches(rows.pages(service, by_number(client)), most=10)
    assert {len(batch.rows) for batch in found[:-1]} == {8}
    assert [batch.done for batch in found] == [*range(2, PAGES, 2), PAGES]


def test_page_larger_than_a_batch_is_not_split(server, client, service):
    serve(server)
    assert {len(batch.rows) for batch in batches(rows.pages(service, by_number(client)), most=1)} == {SIZE}


def test_row_has_its_page_and_its_index(server, client, service):
    serve(server)
    (batch,) = batches(rows.pages(service, by_number(client)), most=1_000)
    assert batch.position_of(0) == "page 1, item 1"
    assert batch.position_of(SIZE * 16 + 2) == "page 17, item 3"
    assert batch.halves()[1].position_of(0) == batch.position_of(len(batch.rows) // 2)
    assert batch.source == "partner"


@pytest.mark.parametrize("style", ["page", "offset", "cursor"])
def test_run_resumes_after_any_batch(service, style):
    def fetch(token):
        first = {"page": lambda: (token - 1) * SIZE, "offset": lambda: token, "cursor": lambda: int(token or 0)}[
            style
        ]()
        found = EVERYTHING[first : first + SIZE]
        more = first + SIZE < len(EVERYTHING)
        return {"results": found, "next": str(first + SIZE) if more else None}

    source = rows.pages(service, fetch, by=style, size=SIZE if style == "offset" else None)
    found = batches(source)
    assert records(found) == EVERYTHING
    for number, batch in enumerate(found):
        position = json.loads(json.dumps(batch.next))
        rest = batches(source, position=position)
        assert records(rest) == records(found[number + 1 :])
        assert [later.done for later in rest] == [later.done for later in found[number + 1 :]]


def test_offsets_advance_by_the_size_of_a_page(server, client, service):
    def answer(request):
        offset = int(request.query["offset"])
        return Answer(json=EVERYTHING[offset : offset + 10])

    server.on("/rows", answer)
    source = rows.pages(service, lambda offset: client.get("/rows", params={"offset": offset}), by="offset", size=10)
    (batch,) = batches(source, most=1_000)
    assert records([batch]) == EVERYTHING
    assert batch.position_of(42) == "offset 40, item 3"
    # The last page is short, so that no page behind it is fetched.
    assert [request.query["offset"] for request in server.requests] == [str(n) for n in range(0, 92, 10)]


def test_cursors_are_followed_until_there_is_none(server, client, service):
    def answer(request):
        first = int(request.query.get("after", "c0")[1:])
        meta = {"after": f"c{first + SIZE}"} if first + SIZE < len(EVERYTHING) else {}
        return Answer(json={"data": EVERYTHING[first : first + SIZE], "meta": meta})

    server.on("/rows", answer)

    def fetch(cursor):
        return client.get("/rows", params={"after": cursor} if cursor else {})

    (batch,) = batches(rows.pages(service, fetch, by="cursor", following="meta.after"), most=1_000)
    assert records([batch]) == EVERYTHING
    assert batch.position_of(0) == "the first page, item 1"
    assert batch.position_of(SIZE) == "cursor c4, item 1"


def test_cursor_is_shown_shortened_without_its_secrets(service):
    links = {None: "https://api.test/rows?api_key=hunter2-hunter2&page=2", "x": None}

    def fetch(link):
        return {"items": [{"id": 1}], "next": None if link else links[None]}

    (batch,) = batches(rows.pages(service, fetch, by="cursor"))
    assert batch.position_of(1) == "cursor https://api.test/rows?api_key=***&page=2, item 1"
    (batch,) = batches(
        rows.pages(service, lambda c: {"items": [{"id": 1}], "next": None if c else "c" * 999}, by="cursor")
    )
    assert len(batch.position_of(1)) < 100


def test_empty_pages_behind_a_cursor_are_no_end(service):
    def fetch(cursor):
        number = cursor or 0
        return {"items": [{"id": 1}] if number in (3, 7) else [], "next": number + 1 if number < 9 else None}

    assert records(batches(rows.pages(service, fetch, by="cursor"))) == [{"id": 1}, {"id": 1}]


def test_no_more_pages_are_read_than_the_limit(server, client, service):
    serve(server)
    source = rows.pages(service, by_number(client), limit=5)
    reading = source.open(None, source.identity())
    assert reading.total == 5
    found = batches(source)
    assert records(found) == EVERYTHING[: 5 * SIZE]
    assert found[-1].done == 5
    assert batches(source, position=found[-1].next) == []
    assert batches(rows.pages(service, by_number(client), limit=2), position=found[-1].next) == []
    assert server.count("/pages/6") == 0


def test_plain_fetch_one_at_a_time_needs_no_thread(service):
    seen = set()

    def fetch(page):
        seen.add(threading.current_thread())
        return page_of(page)

    before = threading.active_count()
    reading = rows.pages(service, fetch).open(None, {})
    assert reading.read(10) is not None
    assert threading.active_count() == before
    assert seen == {threading.current_thread()}


ANY_PAGES = st.lists(st.lists(st.booleans(), min_size=1, max_size=7), max_size=12)  # whether an item is a row


@given(ANY_PAGES, st.integers(1, 20), st.sampled_from(["plain", "threads", "cursor"]))
def test_no_row_is_lost_and_every_batch_can_be_resumed_from(made, most, way):
    held = [[{"page": page} if is_row else f"rubbish {page}" for is_row in found] for page, found in enumerate(made, 1)]

    def fetch(page):
        return {"items": held[page - 1] if page <= len(held) else [], "next": page + 1 if page < len(held) else None}

    options = {"plain": {}, "threads": {"in_flight": 3}, "cursor": {"by": "cursor", "start": 1}}[way]
    source = rows.pages(Service("partner"), fetch, following="next", **options)
    found = batches(source, most)
    assert records(found) == [item for page in held for item in page if isinstance(item, dict)]
    assert [one.position for batch in found for one in batch.unreadable] == [
        f"{'cursor' if way == 'cursor' else 'page'} {page}, item {place}"
        for page, content in enumerate(held, 1)
        for place, item in enumerate(content, 1)
        if isinstance(item, str)
    ]
    before = 0
    for number, batch in enumerate(found):
        count = len(batch.rows) + len(batch.unreadable)
        assert count <= most or batch.done == before + 1
        before = batch.done
        assert records(batches(source, most, batch.next)) == records(found[number + 1 :])


# ── the service underneath ────────────────────────────────────────────────────────────────────────────────────────────


def test_guarded_fetch_is_not_guarded_twice(server, client, service):
    server.on("/pages/1", Answer(503))

    @service
    def fetch(page):
        return client.get(f"/pages/{page}")

    with pytest.raises(redrive.RetriesExhausted):
        batches(rows.pages(service, fetch))
    assert server.count() == 5


def test_service_may_be_below_the_client(server, service):
    server.on("/pages/1", Answer(503), Answer(json=[item(1)]))
    server.on("/pages/2", Answer(503))
    with httpx.Client(transport=service.httpx_transport(), base_url=server.url) as client:
        reading = rows.pages(service, by_number(client)).open(None, {})
        assert reading.read(10).rows.records == [item(1)]
        with pytest.raises(redrive.RetriesExhausted):
            reading.read(10)
    assert server.count("/pages/2") == 5


def test_fetch_gets_the_credential_in_use(server, client):
    server.limit_keys({"key-1111": 3, "key-2222": None}, header="X-Key")
    serve(server)
    service = Service("partner", credentials=redrive.KeyPool(["key-1111", "key-2222"], resets=3600))

    def fetch(page, *, credential):
        return client.get(f"/pages/{page}", headers={"X-Key": credential})

    assert records(batches(rows.pages(service, fetch))) == EVERYTHING


def test_attempts_are_logged_by_the_name_of_the_fetch(service):
    seen = []
    service = Service("partner", on_event=seen.append)

    def orders(page):
        return page_of(page)

    batches(rows.pages(service, orders))
    assert {event.endpoint.rsplit(".", 1)[-1] for event in seen} == {"orders"}


def test_rules_of_the_service_judge_successful_responses(server, client):
    server.on("/pages/1", Answer(json={"error": "slow down"}), Answer(json=[item(1)]))
    server.on("/pages/2", Answer(json={"items": [], "error": "used up"}))
    classifier = (
        redrive.Classifier()
        .rule(status=200, body="slow down", kind="transient")
        .rule(status=200, body="used up", kind="quota")
    )
    service = Service("partner", classifier=classifier)
    reading = rows.pages(service, by_number(client), bad_page="quarantine").open(None, {})
    assert reading.read(10).rows.records == [item(1)]
    with pytest.raises(redrive.RetriesExhausted) as stopped:
        reading.read(10)
    assert redrive.classify(stopped.value).kind == "quota"


# ── the source ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoint_of_other_pages_is_rejected(service):
    def fetch(token):
        return []

    source = rows.pages(service, fetch)
    asked = {"kind": "pages", "service": "partner", "by": "page", "start": 1, "size": None}
    assert source.identity() == {**asked, "first": {"digests": {}, "length": 0}}
    assert source.difference(json.loads(json.dumps(source.identity()))) is None
    assert source.difference({"kind": "csv"}) == "it was taken over 'csv', not over 'pages'"
    for other, clause in (
        (rows.pages(service, fetch, name="orders"), "it was taken over the pages of 'orders', not of 'partner'"),
        (rows.pages(service, fetch, by="cursor"), "its pages went by 'cursor', these by 'page'"),
        (rows.pages(service, fetch, start=0), "its pages began at 0, these at 1"),
        (rows.pages(service, fetch, size=50), "its pages had a size of 50, these of None"),
    ):
        assert source.difference(other.identity()) == clause


@pytest.mark.parametrize(
    "position", [7, {}, {"token": 3}, {"token": 3, "pages": 9}, {"pages": 2}, {"token": "3", "pages": 2}]
)
def test_invalid_position_is_rejected(service, position):
    with pytest.raises(SourceError, match="position"):
        rows.pages(service, lambda page: []).open(position, {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"by": "number"}, "by must be 'page' or 'offset' or 'cursor', not 'number'"),
        ({"bad_page": "skip"}, "bad_page must be 'stop' or 'quarantine'"),
        ({"by": "offset"}, "size must be given with by='offset'"),
        ({"by": "cursor", "in_flight": 4}, "in_flight must be 1 with by='cursor'"),
        ({"by": "cursor", "size": 4}, "size has no meaning with by='cursor'"),
        ({"by": "cursor", "start": b"x"}, "start must be a cursor that JSON can hold"),
        ({"start": "one"}, "start must be the number of the first page"),
        ({"in_flight": 0}, "in_flight must be a whole number from 1 up, not 0"),
        ({"limit": True}, "limit must be a whole number from 1 up"),
        ({"size": -1}, "size must be a whole number from 1 up"),
        ({"name": " "}, "name must not be empty"),
        ({"items": 7}, "items must be a name in the page or a function"),
        ({"following": ""}, "following must be a name in the page or a function"),
    ],
)
def test_options_are_validated_at_once(service, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        rows.pages(service, lambda page: [], **options)


def test_only_a_service_and_a_function_are_accepted(service):
    with pytest.raises(TypeError, match=r"takes a redrive\.Service and the function"):
        rows.pages("partner", lambda page: [])
    with pytest.raises(TypeError, match="guards a function, not 7"):
        rows.pages(service, 7)

    def generator(page):
        yield {}

    with pytest.raises(TypeError, match="is a generator function"):
        rows.pages(service, generator)


def test_record_is_returned_unchanged(service):
    source = rows.pages(service, lambda page: [])
    assert source.again({"id": 1, "page": 3}) == {"id": 1, "page": 3}
    with pytest.raises(TypeError, match="must be an object, not a str"):
        source.again("what?")


class TestChangedPages:
    """A page number is resumed where the first page is still the one that the run began with."""

    def test_moved_pages_start_over_with_a_warning(self, tmp_path):
        stop_after_two_pages(tmp_path, Api("Monday"))
        report = load(tmp_path, Api("Tuesday")).run()
        assert (report.status, report.resumed, report.read) == ("complete", False, 40)
        assert "items of the first page differ" in report.started_over
        assert days(tmp_path) == {"Tuesday": 40}

    def test_same_pages_resume_with_one_more_call(self, tmp_path):
        stop_after_two_pages(tmp_path, Api("Monday"))
        api = Api("Monday")
        report = load(tmp_path, api).run()
        assert (report.status, report.resumed, report.read, report.started_over) == ("complete", True, 40, None)
        assert api.calls == [1, 3, 4, 5, 6]

    def test_run_that_is_not_resumed_fetches_no_page_twice(self, tmp_path):
        api = Api("Monday")
        assert load(tmp_path, api).run().read == 40
        assert api.calls == [1, 2, 3, 4, 5, 6]

    def test_service_that_is_down_does_not_start_over(self, tmp_path):
        stop_after_two_pages(tmp_path, Api("Monday"))

        def down(page):
            raise ConnectionRefusedError("down")

        with pytest.raises(redrive.RunStopped, match="ConnectionRefusedError") as stopped:
            load(tmp_path, down).run()
        assert stopped.value.kind == "transient"
        assert load(tmp_path, Api("Monday")).run().resumed

    def test_open_circuit_stops_the_run_with_advice(self, tmp_path):
        stop_after_two_pages(tmp_path, Api("Monday"))
        service = Service("partner", retry=redrive.Retry(attempts=1), breaker=redrive.Breaker(failures=1))
        with pytest.raises(ConnectionRefusedError):
            service.call(_refuse)
        pipeline = load(tmp_path, Api("Monday"), service=service)
        with pytest.raises(redrive.RunStopped, match=r"circuit is open.*; nothing was read; running again") as stopped:
            pipeline.run()
        assert (stopped.value.kind, exit_code(stopped.value)) == ("transient", 69)
        service.reset()
        assert pipeline.run().resumed

    def test_verdict_of_fetch_stops_the_run(self, tmp_path):
        stop_after_two_pages(tmp_path, Api("Monday"))

        def busy(page):
            raise redrive.Transient("maintenance until noon")

        with pytest.raises(redrive.RunStopped, match="maintenance until noon; nothing was read") as stopped:
            load(tmp_path, busy).run()
        assert stopped.value.kind == "transient"

    @pytest.mark.parametrize(("identity", "resumed"), [("1 July", True), ("2 July", False)])
    def test_declared_identity_decides(self, tmp_path, identity, resumed):
        stop_after_two_pages(tmp_path, Api("Monday"), identity="1 July")
        report = load(tmp_path, Api("Tuesday"), identity=identity).run()
        assert (report.resumed, report.started_over is None) == (resumed, resumed)

    def test_cursor_is_resumed_unchanged(self, tmp_path):
        def by_cursor(day):
            return lambda page: {"items": Api(day)(page), "next": page + 1 if page < 4 else None}

        stop_after_two_pages(tmp_path, by_cursor("Monday"), by="cursor", start=1)
        assert load(tmp_path, by_cursor("Tuesday"), by="cursor", start=1).run().resumed

    def test_identity_must_be_a_text(self):
        with pytest.raises(ValueError, match="identity must be a text"):
            rows.pages(Service("partner"), page_of, identity=" ")


class Api:
    """Four pages of ten items each, which hold the day."""

    def __init__(self, day):
        self.day, self.calls = day, []

    def __call__(self, page):
        self.calls.append(page)
        return [{"id": page * 10 + n, "day": self.day} for n in range(10)] if page <= 4 else []


def _refuse():
    raise ConnectionRefusedError("down")


def load(tmp_path, fetch, *, service=None, **options):
    return redrive.Pipeline(
        "daily",
        source=rows.pages(service or Service("partner"), fetch, **options),
        sink=rows.table(f"sqlite:///{tmp_path}/sink.db", "t", key="id", create=True),
        batch=10,
        store=tmp_path / "store.db",
    )


def stop_after_two_pages(tmp_path, fetch, **options):
    pipeline = load(tmp_path, fetch, **options)
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=lambda _: pipeline.stop())


def days(tmp_path):
    with sqlite3.connect(tmp_path / "sink.db") as connection:
        return dict(connection.execute("SELECT day, count(*) FROM t GROUP BY day").fetchall())


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(1, 9), st.integers(1, 9))
def test_resuming_at_every_page_reads_the_same_rows(sizes, most, afterwards):
    pages = [[{"id": f"{page}/{n}"} for n in range(size)] for page, size in enumerate(sizes)]

    def source():
        return rows.pages(Service("partner"), lambda page: pages[page - 1] if page <= len(pages) else [])

    whole = batches(source(), most)
    assert records(whole) == [record for page in pages for record in page]
    for place, batch in enumerate(whole):
        assert records(batches(source(), afterwards, json.loads(json.dumps(batch.next)))) == records(whole[place + 1 :])


class TestEmptyPages:
    """An empty page is the end where the page after it has no items either."""

    @pytest.mark.parametrize("size", [None, 2])
    def test_empty_page_in_the_middle_is_not_the_end(self, size):
        pages = [["a", "b"], [], ["c", "d"], ["e", "f"]]
        source = rows.pages(Service("partner"), lambda page: self.page(pages, page), size=size)
        found = batches(source)
        assert [record["id"] for record in records(found)] == ["a", "b", "c", "d", "e", "f"]
        for place, batch in enumerate(found):
            assert records(batches(source, position=batch.next)) == records(found[place + 1 :])

    def test_failing_service_behind_an_empty_page_does_not_matter(self):
        def fetch(page):
            if page == 3:
                raise ConnectionRefusedError("no such page")
            return self.page([["a"]], page)

        assert records(batches(rows.pages(Service("partner"), fetch))) == [{"id": "a"}]

    @pytest.mark.parametrize("limit", [2, 3])
    def test_limit_of_pages_applies(self, limit):
        pages = [["a"], [], ["b"], ["c"]]
        source = rows.pages(Service("partner"), lambda page: self.page(pages, page), limit=limit)
        assert [record["id"] for record in records(batches(source))] == ["a", "b"][: limit - 1]

    def page(self, pages, page):
        return [{"id": one} for one in pages[page - 1]] if page <= len(pages) else []


def test_page_with_a_value_error_in_fetch_is_quarantined_alone():
    def fetch(page):
        if page == 2:
            raise ValueError("no number: N/A")
        return page_of(page)

    source = rows.pages(Service("partner"), fetch, bad_page="quarantine")
    found = batches(source)
    assert records(found) == [one for one in EVERYTHING if one not in page_of(2)]
    [lost] = [one for batch in found for one in batch.unreadable]
    assert (lost.raw["page"], lost.position) == (2, "page 2")
    with pytest.raises(SourceError, match=r"page 2 of 'partner' cannot be had.*bad_page"):
        batches(rows.pages(Service("partner"), fetch))
