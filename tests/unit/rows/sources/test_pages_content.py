"""What fetch may return, what is read from it, and where pages end."""

import json
from datetime import datetime, tzinfo
from types import MappingProxyType
from urllib.request import urlopen

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from redrive import Retry, Service, rows
from redrive.errors import SourceError
from redrive.model.letters import ErrorType
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


# ── what fetch may give ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "give",
    [
        lambda found: found,
        tuple,
        lambda found: {"items": found, "tags": ["a"]},
        lambda found: {"total": 92, "data": found},
        lambda found: {"deliveries": found, "errors": []},
        lambda found: MappingProxyType({"records": found}),
        lambda found: json.dumps(found),
        lambda found: json.dumps({"results": found}).encode(),
        lambda found: httpx.Response(200, json=found),
    ],
)
def test_page_may_be_a_list_object_response_or_json(service, give):
    assert records(batches(rows.pages(service, lambda page: give(page_of(page))))) == EVERYTHING


@pytest.mark.parametrize("library", ["requests", "urllib"])
def test_responses_of_other_libraries_are_read(server, service, library):
    server.on("/pages/*", lambda request: Answer(json=page_of(int(request.path.rsplit("/", 1)[1]))))
    with requests.Session() as session:

        def fetch(page):
            url = f"{server.url}/pages/{page}"
            return session.get(url) if library == "requests" else urlopen(url)

        assert records(batches(rows.pages(service, fetch))) == EVERYTHING


@pytest.mark.parametrize("items", ["body.deliveries", lambda page: page["body"]["deliveries"]])
def test_items_names_the_path_of_the_list(service, items):
    source = rows.pages(service, lambda page: {"body": {"deliveries": page_of(page)}, "other": [1]}, items=items)
    assert records(batches(source)) == EVERYTHING


def test_name_may_contain_dots(service):
    assert records(batches(rows.pages(service, lambda page: {"a.b": page_of(page)}, items="a.b"))) == EVERYTHING


def test_several_lists_need_an_explicit_name(service):
    source = rows.pages(service, lambda page: {"users": [], "groups": []})
    with pytest.raises(SourceError, match=r"several lists, 'users', 'groups': name one with items="):
        batches(source)


@pytest.mark.parametrize("given", [None, 7, object(), iter([])])
def test_value_that_is_no_page_is_reported(service, given):
    with pytest.raises(SourceError, match=r"fetch gave .*: it must give a list of records"):
        batches(rows.pages(service, lambda page: given))


def test_response_without_content_is_an_empty_page(server, client, service):
    server.on("/pages/1", Answer(json=[item(1)]))
    server.on("/pages/2", Answer(204))
    assert records(batches(rows.pages(service, by_number(client)))) == [item(1)]


def test_unfollowed_redirect_stops_the_run(server, client, service):
    server.on("/pages/1", Answer(302, headers={"Location": "/login"}))
    with pytest.raises(SourceError, match="let the HTTP client follow redirects"):
        batches(rows.pages(service, by_number(client), bad_page="quarantine"))


def test_item_that_is_no_object_is_a_letter(service):
    found = [{"id": 1}, "what?", None, {"id": 2}, [3]]
    (batch,) = batches(rows.pages(service, lambda page: found if page == 1 else []))
    assert batch.rows.records == [{"id": 1}, {"id": 2}]
    assert [batch.position_of(place) for place in range(2)] == ["page 1, item 1", "page 1, item 4"]
    assert [(one.raw, one.position) for one in batch.unreadable] == [
        ("what?", "page 1, item 2"),
        (None, "page 1, item 3"),
        ([3], "page 1, item 5"),
    ]
    assert batch.unreadable[0].error == "an item of a page must be an object, not a str"
    assert batch.unreadable[0].error_type is ErrorType.PARSE


# ── where it ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_short_page_is_the_last_where_the_size_is_known(service):
    asked = []

    def fetch(page):
        asked.append(page)
        return EVERYTHING[(page - 1) * 10 : page * 10]

    assert records(batches(rows.pages(service, fetch, size=10))) == EVERYTHING
    assert asked == list(range(1, 11))


@pytest.mark.parametrize("style", ["page", "offset"])
def test_api_with_a_lower_page_limit_is_an_error_not_the_end(service, style):
    def fetch(token):
        first = token if style == "offset" else (token - 1) * 10
        return EVERYTHING[first : first + 10]

    with pytest.raises(SourceError, match="the API gives at most 10 at a time; set size to that"):
        batches(rows.pages(service, fetch, by=style, size=50))


class TestShortPageByOffset:
    @staticmethod
    def source(service, sizes, following="more", **options):
        """Pages at the offsets 0, 10, 20 …, each with this number of items."""

        def fetch(offset):
            place = offset // 10
            return {"items": EVERYTHING[offset : offset + sizes[place]], "more": place + 1 < len(sizes)}

        return rows.pages(service, fetch, by="offset", size=10, following=following, **options)

    @pytest.mark.parametrize("in_flight", [1, 4])
    @pytest.mark.parametrize("following", ["more", lambda page: page["more"]])
    def test_capped_page_with_following_stops(self, service, following, in_flight):
        source = self.source(service, [4, 4, 4, 4], following, in_flight=in_flight)
        with pytest.raises(SourceError, match=r"offset 0 has 4 items instead of 10, .* set size to that"):
            batches(source)

    def test_short_page_in_the_middle_stops(self, service):
        source = self.source(service, [10, 7, 10])
        reading = source.open(None, source.identity())
        assert reading.read(10).rows.records == EVERYTHING[:10]
        with pytest.raises(SourceError, match="offset 10 has 7 items instead of 10, and more follow"):
            reading.read(10)
        reading.close()

    def test_empty_page_before_others_stops(self, service):
        with pytest.raises(SourceError, match=r"has 0 items instead of 10, and more follow\. If the API filters"):
            batches(self.source(service, [10, 0, 10]))

    def test_short_last_page_is_the_end(self, service):
        assert records(batches(self.source(service, [10, 10, 3]))) == EVERYTHING[:23]

    def test_replayed_page_that_is_capped_stays_open(self, service):
        source = self.source(service, [10, 7, 10], identity="today")
        with pytest.raises(SourceError, match="offset 10 has 7 items instead of 10"):
            source.again({"page": 10, "service": "partner", "body": None}, source.identity())


class TestLongPageByOffset:
    @staticmethod
    def source(service, **options):
        """Pages of up to thirty items, by a fetch that does not send the size."""

        def fetch(offset):
            return {"items": EVERYTHING[offset : offset + 30], "more": offset + 30 < len(EVERYTHING)}

        return rows.pages(service, fetch, by="offset", size=10, **options)

    @pytest.mark.parametrize("in_flight", [1, 4])
    @pytest.mark.parametrize("following", [None, "more"])
    def test_stops_before_a_row_is_read_again(self, service, following, in_flight):
        with pytest.raises(SourceError, match=r"offset 0 has 30 items instead of 10, .* set size to 30, or have fetch"):
            batches(self.source(service, following=following, in_flight=in_flight))

    def test_is_the_end_where_the_page_itself_is_the_last(self, service):
        found = rows.pages(
            service, lambda _: {"items": EVERYTHING[:12], "more": False}, by="offset", size=10, following="more"
        )
        assert records(batches(found)) == EVERYTHING[:12]

    def test_replayed_page_stays_open(self, service):
        source = self.source(service, identity="today")
        with pytest.raises(SourceError, match="offset 10 has 30 items instead of 10"):
            source.again({"page": 10, "service": "partner", "body": None}, source.identity())

    def test_is_read_by_page_where_no_offset_is_skipped(self, service):
        def fetch(page):
            return EVERYTHING[30 * (page - 1) : 30 * page]

        assert records(batches(rows.pages(service, fetch, size=10))) == EVERYTHING


def test_single_short_page_is_a_whole_source(service):
    assert (
        records(batches(rows.pages(service, lambda page: EVERYTHING[:3] if page == 1 else [], size=50)))
        == (EVERYTHING[:3])
    )


def test_empty_source_has_no_batch(service):
    assert batches(rows.pages(service, lambda page: [])) == []


def test_pages_by_number_may_declare_their_end(service):
    asked = []

    def fetch(page):
        asked.append(page)
        return {"items": [] if page == 2 else [item(page)], "has_more": page < 4}

    assert records(batches(rows.pages(service, fetch, following="has_more"))) == [item(1), item(3), item(4)]
    assert asked == [1, 2, 3, 4]


def test_two_missing_pages_in_a_row_are_the_end(server, client, service):
    server.on("/pages/1", Answer(json=[item(1)]))
    server.on("/pages/2", Answer(json=[item(2)]))
    source = rows.pages(service, by_number(client))
    found = batches(source)
    assert records(found) == [item(1), item(2)]
    assert batches(source, position=found[-1].next) == []


def test_missing_first_page_is_no_empty_source(server, client, service):
    for bad_page in ("stop", "quarantine"):
        with pytest.raises(SourceError, match="page 1 of 'partner' cannot be had: HTTP 404 Not Found"):
            batches(rows.pages(service, by_number(client), bad_page=bad_page))


# ── rubbish ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 30), st.integers(1, 30))
def test_recurring_cursors_are_a_cycle(tail, circle):
    def fetch(cursor):
        step = (cursor or 0) + 1
        return {"items": [{"id": 1}], "next": step if step <= tail + circle else tail + 1}

    with pytest.raises(SourceError, match="came twice: the API goes in circles"):
        batches(rows.pages(Service("partner"), fetch, by="cursor"))


def test_endless_empty_pages_are_detected(service):
    source = rows.pages(service, lambda page: {"items": [], "more": True}, following="more")
    with pytest.raises(SourceError, match="1,000 pages in a row, up to page 1000, hold no items"):
        batches(source)


def test_endless_identical_pages_are_detected(service):
    with pytest.raises(SourceError, match="3 pages in a row, up to page 3, hold the very same items"):
        batches(rows.pages(service, lambda page: {"items": [item(1), item(2)], "page": page}))


def test_cursor_with_an_unusual_name_must_be_named(service):
    with pytest.raises(SourceError, match="pass following= its name"):
        batches(rows.pages(service, lambda cursor: {"items": [item(1)], "paging": {"after": "x"}}, by="cursor"))


def test_usual_cursor_may_be_missing_in_the_last_page(service):
    def fetch(cursor):
        return {"items": [item(1)], **({} if cursor else {"next_cursor": "x"})}

    assert len(records(batches(rows.pages(service, fetch, by="cursor")))) == 2


def test_list_cannot_name_a_cursor(service):
    with pytest.raises(SourceError, match="the page is a list, which has no names in it"):
        batches(rows.pages(service, lambda cursor: [item(1)], by="cursor", following="next"))
    ids = rows.pages(
        service,
        lambda after: EVERYTHING[(after or -1) + 1 :][:10] if after else EVERYTHING[:10],
        by="cursor",
        following=lambda page: page[-1]["id"] if page else None,
    )
    assert records(batches(ids)) == EVERYTHING


def test_cursor_that_no_checkpoint_can_store_is_rejected(service):
    source = rows.pages(service, lambda cursor: {"items": [item(1)], "next": object()}, by="cursor")
    with pytest.raises(SourceError, match="a cursor must be something that JSON can hold"):
        batches(source)


def test_fallback_is_not_read_as_a_page():
    def fetch(page):
        raise ConnectionResetError

    service = Service("partner", retry=Retry(attempts=1), fallback=[])
    with pytest.raises(SourceError, match="gave its fallback in place of a page"):
        batches(rows.pages(service, fetch))


def test_datetime_with_a_raising_zone_is_a_value(service):
    class Broken(tzinfo):
        def utcoffset(self, moment):
            raise ValueError("no offset")

    item = {"at": datetime(2026, 7, 1, tzinfo=Broken())}
    reading = rows.pages(service, lambda page: [item], limit=1).open(None, {})
    assert reading.read(10).rows.records == [item]
