"""Numbers of JSON are exact, in lines and in pages."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redrive
from redrive import rows
from redrive._internal.numbers import exact
from redrive.rows.sources.ndjson.numbers import has_long_number, is_exact, loads
from redrive.rows.sources.pages.content import decoded
from redrive.testing import Answer, FaultyServer
from tests.support.examples import examples

DIGITS = st.text("0123456789", min_size=1, max_size=25)
EXPONENTS = st.builds(
    "{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), DIGITS.map(lambda digits: digits[:3])
)
NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: sign + (whole.lstrip("0") or "0") + fraction + exponent,
    st.sampled_from(["", "-"]),
    DIGITS,
    st.one_of(st.just(""), DIGITS.map(".{}".format)),
    st.one_of(st.just(""), EXPONENTS),
)


def read(path, text):
    path.write_text(text)
    source = rows.ndjson(path)
    reading = source.open(None, source.identity())
    batches = list(iter(lambda: reading.read(100), None))
    reading.close()
    return [record for batch in batches for record in batch.rows.records], [u for b in batches for u in b.unreadable]


@settings(max_examples=examples(500), deadline=None)
@given(number=NUMBERS)
def test_number_is_the_value_that_was_written(number):
    try:
        value = loads(number)
    except ValueError as error:
        assert "what a float can hold" in str(error)  # noqa: PT017
        return
    if isinstance(value, float):
        value = repr(value)
    assert Decimal(value) == Decimal(number)


@settings(max_examples=examples(300), deadline=None)
@given(numbers=st.lists(NUMBERS, max_size=5), text=st.text())
def test_orjson_is_used_only_for_numbers_it_represents_exactly(numbers, text):
    import orjson

    data = f'{{"a": [{", ".join(numbers)}],"b":{json.dumps(text)}}}'
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    exactly = is_exact(data.encode(), found)
    assert exactly or has_long_number(data.encode())
    if exactly:
        known = loads(data)
        assert found == known
        assert list(map(type, found["a"])) == list(map(type, known["a"]))


@pytest.mark.parametrize("text", ["0.1", "0.30000000000000004", "12.345678901234567", "1e22", "1.50", "-0.0", "0e999"])
def test_number_that_a_float_represents_is_a_float(text):
    assert type(exact(text)) is float


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "0.0001e-99999999999999999999"])
def test_number_out_of_range_is_rejected_by_name(text):
    with pytest.raises(ValueError, match="what a float can hold"):
        exact(text)


@pytest.mark.parametrize("text", ["12345678901234567.89", "99999999999999999.99", "1.2345678901234567890e5"])
def test_long_decimal_comes_exactly_from_lines_and_pages(tmp_path, text):
    ((record,), []) = read(tmp_path / "a.ndjson", f'{{"id": 1, "fee": {text}, "in": [{{"x":{text}}}]}}\n')
    assert record == {"id": 1, "fee": Decimal(text), "in": [{"x": Decimal(text)}]}
    assert decoded(f'[{{"fee": {text}}}]') == [{"fee": Decimal(text)}]
    assert decoded(f'[{{"fee": {text}}}]'.encode()) == [{"fee": Decimal(text)}]


@pytest.mark.parametrize("library", ["httpx", "requests", "urllib3"])
def test_long_decimal_comes_exactly_from_responses(library):
    client = pytest.importorskip(library)
    with FaultyServer() as server:
        server.on("/a", Answer(body=b'[{"fee": 12345678901234567.89, "id": 1}]'))
        get = (lambda url: client.request("GET", url)) if library == "urllib3" else client.get
        assert decoded(get(f"{server.url}/a")) == [{"fee": Decimal("12345678901234567.89"), "id": 1}]


def test_response_without_json_options_is_read_as_parsed():
    class Response:
        status_code = 200

        def json(self):
            return [1.5]

    assert decoded(Response()) == [1.5]


def test_number_too_small_for_a_float_is_a_letter_of_its_line(tmp_path):
    good, (bad,) = read(tmp_path / "a.ndjson", '{"id": 1}\n{"id": 2, "x": 1e-400}\n')
    assert good == [{"id": 1}]
    assert (bad.raw, bad.error) == (b'{"id": 2, "x": 1e-400}', "1e-400 is smaller than what a float can hold")


def test_letter_and_table_have_the_received_number(tmp_path):
    (tmp_path / "a.ndjson").write_text(
        '{"id": 1, "fee": 12345678901234567.89}\n{"id": 2, "fee": 99999999999999999.99, "bad": true}\n'
        '{"id": 3, "fee": 0.5}\n'
    )

    def validate(record):
        if "bad" in record:
            raise ValueError("bad")
        return {"id": record["id"], "fee": record["fee"]}

    with redrive.connect(tmp_path / "store.db") as store:
        redrive.Pipeline(
            "numbers",
            source=rows.ndjson(tmp_path / "a.ndjson"),
            sink=rows.parquet_dataset(tmp_path / "out", key="id"),
            validate=validate,
            gate=redrive.Gate(abort=1.0),
            store=store,
        ).run()
        found = {letter.record["id"]: letter.record["fee"] for letter in store.dlq.each()}
    import duckdb

    written = dict(duckdb.sql(f"SELECT id, fee FROM '{tmp_path}/out/*.parquet'").fetchall())
    assert found == {2: Decimal("99999999999999999.99")}
    assert written == {1: Decimal("12345678901234567.89"), 3: Decimal("0.5")}
