"""The message of the server is part of the verdict."""

from __future__ import annotations

import httpx
import pydantic
import pytest

from redrive import classify
from redrive.model.calls import Kind


def detail_of(body, content_type="application/json"):
    return classify(httpx.Response(422, text=body, headers={"content-type": content_type})).detail


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"message": "fee must be a number"}', "fee must be a number"),
        ('{"error": "invalid_grant", "error_description": "Token expired"}', "Token expired; invalid_grant"),
        ('{"error": {"code": 5, "message": "No such vendor"}}', "No such vendor"),
        ('{"errors": [{"message": "a"}, {"message": "b"}]}', "a; b"),
        ('{"errors": {"fee": ["is not a number"], "date": ["is missing"]}}', "fee: is not a number; date: is missing"),
        ('{"detail": [{"loc": ["body", "fee"], "msg": "Field required"}]}', "body.fee: Field required"),
        ('{"title": "Bad fee", "detail": "fee is negative", "type": "about:blank"}', "Bad fee; fee is negative"),
        ('{"errors": [{"field": "fee", "message": "too high"}]}', "fee: too high"),
        ('["first", "second"]', "first; second"),
        ('{"fee": ["is not a number"]}', '{"fee": ["is not a number"]}'),
        ('{"message": "same", "error": "same"}', "same"),
        ('{"message": "cut of', '{"message": "cut of'),
        ("<html><head><title>502 Bad Gateway</title></head><body>x</body></html>", "502 Bad Gateway"),
        ("<p>fee <b>missing</b></p><script>x()</script>", "fee missing"),
        ("  plain   text\n", "plain text"),
        ("", None),
        ("   ", None),
    ],
)
def test_message_part_of_a_body_is_found(body, detail):
    assert detail_of(body) == detail


def test_detail_is_cut_at_a_thousand_characters():
    detail = detail_of("x" * 5_000_000)
    assert len(detail) == 1000
    assert detail.endswith("x…")


def test_secret_in_a_server_message_is_masked_even_at_the_cut():
    assert "hunter2" not in detail_of('{"message": "bad password=hunter2"}')
    assert "hunter2" not in detail_of('{"fee": 1, "password": "hunter2"}')
    assert "sk-live" not in detail_of("x" * 990 + " sk-live-abcdefghijklmnop")


def test_secret_named_by_a_tag_is_masked():
    assert "hunter2" not in detail_of("<error><password>hunter2abc</password></error>")


def test_secret_at_the_cut_of_a_page_is_left_out():
    token = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    for shift in range(0, 60, 5):
        page = "<p>" + "<br>" * 4_985 + "." * shift + " " + token
        assert "ghp_" not in detail_of(page)


def test_deeply_nested_json_is_shown_as_text():
    assert detail_of("[" * 100_000).startswith("[[[[")


class Delivery(pydantic.BaseModel):
    fee: float
    city: str


def test_validation_error_shows_all_errors_but_not_the_record():
    with pytest.raises(pydantic.ValidationError) as caught:
        Delivery.model_validate({"fee": "secret-fee", "city": None})
    verdict = classify(caught.value, "row")
    assert (verdict.kind, verdict.rule) == (Kind.ROW, "type.pydantic_core.ValidationError")
    assert verdict.detail == (
        "fee: Input should be a valid number, unable to parse string as a number; city: Input should be a valid string"
    )
    assert classify(caught.value).kind is Kind.PERMANENT
    assert classify(caught.value, "task").kind is Kind.AMBIGUOUS


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_error_with_broken_text_is_shown_by_its_class():
    assert classify(Mute()).detail == "Mute"


def test_error_without_text_has_no_detail():
    assert classify(TimeoutError()).detail is None
