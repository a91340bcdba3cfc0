"""Tokens that expire and keys with a quota."""

from __future__ import annotations

import httpx
import pytest

from redrive.testing import Answer, FaultyServer


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def page(server):
    server.on("/page", Answer(json="ok"))
    return server.url + "/page"


def test_missing_token_gets_401_with_a_challenge(server, page):
    server.require_token(uses=10)
    reply = httpx.get(page)
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
    reply = httpx.get(page, headers=bearer("made-up"))
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')


def test_token_is_valid_for_its_number_of_uses(server, page):
    server.require_token(uses=3)
    token = server.issue_token()
    assert [httpx.get(page, headers=bearer(token)).status_code for _ in range(5)] == [200, 200, 200, 401, 401]


def test_token_without_a_limit_is_valid_until_it_expires(server, page):
    server.require_token()
    token = server.issue_token()
    assert [httpx.get(page, headers=bearer(token)).status_code for _ in range(3)] == [200, 200, 200]
    server.expire_tokens()
    assert httpx.get(page, headers=bearer(token)).status_code == 401
    assert httpx.get(page, headers=bearer(server.issue_token())).status_code == 200


def test_several_tokens_are_valid_and_expire_separately(server, page):
    server.require_token(uses=2)
    first, second = server.issue_token(), server.issue_token()
    assert first != second
    tokens = [first, second, first, first, second, second]
    assert [httpx.get(page, headers=bearer(token)).status_code for token in tokens] == [200, 200, 200, 401, 200, 401]


def test_token_endpoint_issues_tokens_and_is_counted(server, page):
    server.on("/*", Answer(500))  # a pattern does not hide the endpoint
    server.require_token(uses=1)
    reply = httpx.post(server.url + "/token")
    assert reply.json()["token_type"] == "Bearer"
    assert httpx.get(page, headers=bearer(reply.json()["access_token"])).status_code == 200
    assert server.count("/token") == 1
    assert httpx.get(server.url + "/token").status_code == 405


def test_token_endpoint_can_be_scripted(server):
    server.require_token()
    server.on("/token", Answer(503))
    assert httpx.post(server.url + "/token").status_code == 503


def test_server_without_required_tokens_has_none(server):
    assert httpx.post(server.url + "/token").status_code == 404
    with pytest.raises(RuntimeError, match="require_token"):
        server.issue_token()
    with pytest.raises(RuntimeError, match="require_token"):
        server.expire_tokens()


def test_rejected_request_advances_no_script(server):
    server.on("/page", Answer(503), Answer(200))
    server.require_token()
    assert httpx.get(server.url + "/page").status_code == 401
    assert httpx.get(server.url + "/page", headers=bearer(server.issue_token())).status_code == 503


@pytest.mark.parametrize(
    ("place", "sent"),
    [
        ({"header": "X-Api-Key"}, lambda key: {"headers": {"x-api-key": key}}),
        ({"query": "key"}, lambda key: {"params": {"key": key}}),
        ({"bearer": True}, lambda key: {"headers": bearer(key)}),
    ],
    ids=["header", "query", "bearer"],
)
def test_key_beyond_its_quota_gets_403_with_the_reason(server, page, place, sent):
    server.limit_keys({"k1": 2, "k2": None}, **place)
    assert [httpx.get(page, **sent("k1")).status_code for _ in range(3)] == [200, 200, 403]
    error = httpx.get(page, **sent("k1")).json()["error"]
    assert (error["code"], error["errors"][0]["reason"]) == (403, "quotaExceeded")
    assert [httpx.get(page, **sent("k2")).status_code for _ in range(4)] == [200] * 4
    assert httpx.get(page, **sent("k3")).status_code == 401
    assert httpx.get(page).status_code == 401
    server.reset_quota()
    assert [httpx.get(page, **sent("k1")).status_code for _ in range(3)] == [200, 200, 403]


@pytest.mark.parametrize("place", [{}, {"header": "X", "query": "key"}, {"query": "key", "bearer": True}])
def test_location_of_the_key_must_be_named_once(place):
    with pytest.raises(ValueError, match="exactly one"):
        FaultyServer().limit_keys({"k": 1}, **place)


def test_impossible_limits_raise():
    with pytest.raises(ValueError, match="quota must be from 0 up"):
        FaultyServer().limit_keys({"k": -1}, query="key")
    with pytest.raises(ValueError, match="uses must be from 1 up"):
        FaultyServer().require_token(uses=0)
    with pytest.raises(RuntimeError, match="limit_keys"):
        FaultyServer().reset_quota()
