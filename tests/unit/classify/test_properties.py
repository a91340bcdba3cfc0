"""The classifier has a verdict for every exception and every response."""

from __future__ import annotations

import httpx
from hypothesis import given
from hypothesis import strategies as st

from redrive import classify
from redrive.classify.detail import LIMIT
from redrive.model.calls import Kind, Verdict

scopes = st.sampled_from(["call", "row", "task"])
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just(object())),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
bases = st.sampled_from(
    [Exception, OSError, ValueError, RuntimeError, ConnectionError, httpx.HTTPError, httpx.InvalidURL, KeyError]
)
attributes = st.dictionaries(
    st.sampled_from(
        [
            *("status", "status_code", "code", "headers", "response", "body", "_content", "_body", "fp", "message"),
            *(
                "sqlstate",
                "pgcode",
                "errno",
                "sqlite_errorcode",
                "orig",
                "reason",
                "kwargs",
                "diag",
                "detail",
                "errors",
            ),
            *("connection_invalidated", "retry_after", "os_error", "__cause__"),
        ]
    ),
    st.one_of(anything, st.builds(ValueError), st.sampled_from([200, 302, 403, 429, 503, "23505", "40P01"])),
)
modules = st.sampled_from(
    [
        "tests",
        "httpx",
        "requests.exceptions",
        "sqlalchemy.exc",
        "botocore.exceptions",
        "pymysql.err",
        "grpc",
        "cimpl",
        "",
    ]
)
class_names = st.sampled_from(["Odd", "HTTPError", "KafkaException", "RpcError", "ValidationError", "ClientError"])


def check(verdict):
    assert isinstance(verdict, Verdict)
    assert isinstance(verdict.kind, Kind)
    assert verdict.reason
    assert verdict.rule
    assert verdict.retry_after is None or verdict.retry_after >= 0
    assert verdict.detail is None or 0 < len(verdict.detail) <= LIMIT


@given(bases, modules, class_names, st.lists(anything, max_size=3), attributes, scopes)
def test_every_exception_gets_a_verdict(base, module, name, arguments, given_attributes, scope):
    error = type(name, (base,), {"__module__": module, "__init__": lambda self, *args: None})(*arguments)
    for attribute, value in given_attributes.items():
        try:
            setattr(error, attribute, value)
        except (TypeError, AttributeError):
            continue
    check(classify(error, scope))


@given(
    st.integers(min_value=400, max_value=999),
    st.dictionaries(st.sampled_from(["Retry-After", "retry-after", "Date", "date", "X"]), anything),
    st.one_of(st.none(), st.binary(), st.text(), st.sampled_from([b'{"errors": [{"a": 1}]}', b"[[1]]", b"<title>"])),
    scopes,
)
def test_every_response_of_a_failure_gets_a_verdict(status, headers, body, scope):
    response = type("Response", (), {"status_code": status, "headers": headers, "_content": body})()
    verdict = classify(response, scope)
    check(verdict)
    assert verdict.status == status


@given(st.binary(max_size=300))
def test_body_never_changes_the_kind_of_a_status(body):
    assert classify(httpx.Response(422, content=body)).kind is Kind.PERMANENT
