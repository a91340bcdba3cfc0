"""Rules of the user, and which of several rules wins."""

from __future__ import annotations

import errno
import pickle

import httpx
import psycopg
import pytest
import requests
from psycopg import errors as pg

from redrive import Classifier, classify
from redrive.errors import Transient
from redrive.model.calls import Kind


class BankError(Exception):
    pass


class BankDown(BankError):
    pass


class BankUnreachable(BankError, ConnectionError):
    pass


DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


def kind_of(classifier, failure, scope="call"):
    return classifier.classify(failure, scope).kind.value


def test_rule_classifies_an_unknown_error():
    verdict = Classifier().rule(BankDown, kind="transient").classify(BankDown("closed"))
    assert (verdict.kind, verdict.rule, verdict.reason) == (Kind.TRANSIENT, "rule(BankDown)", "BankDown")
    assert verdict.detail == "closed"


def test_classifier_never_changes():
    plain = Classifier()
    ruled = plain.rule(BankDown, kind="transient")
    assert kind_of(plain, BankDown()) == "permanent"
    assert kind_of(ruled, BankDown()) == "transient"
    with pytest.raises(AttributeError):
        ruled.rules = ()


def test_classifier_can_be_sent_to_another_process():
    ruled = Classifier(unknown="ambiguous").rule(requests.Timeout, kind="row", status=range(500, 510))
    assert pickle.loads(pickle.dumps(ruled)) == ruled


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_can_be_passed_by_name_or_as_a_member(kind):
    assert Classifier().rule(BankDown, kind=kind).classify(BankDown()).kind is kind
    assert Classifier().rule(BankDown, kind=kind.value).classify(BankDown()).kind is kind


@pytest.mark.parametrize("scope", ["call", "row", "task"])
def test_kind_of_unknown_errors_applies_in_every_scope(scope):
    assert kind_of(Classifier(unknown="ambiguous"), BankDown(), scope) == "ambiguous"
    assert kind_of(Classifier(unknown=Kind.TRANSIENT), BankDown(), scope) == "transient"
    assert Classifier(unknown="transient").classify(ValueError(), scope) == classify(ValueError(), scope)


def test_catch_all_rule_makes_only_unknown_errors_retryable():
    lenient = Classifier().rule(Exception, kind="transient")
    assert kind_of(lenient, BankDown()) == "transient"
    assert kind_of(lenient, BankUnreachable()) == "transient"
    for failure in (TypeError(), DISK_FULL, pg.SyntaxError(), pg.UniqueViolation(), BankUnreachable()):
        assert lenient.classify(failure) == classify(failure)
    response = httpx.Response(400, request=httpx.Request("GET", "https://example.com/"))
    error = httpx.HTTPStatusError("bad", request=response.request, response=response)
    assert kind_of(lenient, error) == "permanent"


def test_rule_on_the_exact_class_wins_over_built_in_rules():
    assert kind_of(Classifier().rule(pg.UniqueViolation, kind="discard"), pg.UniqueViolation()) == "discard"
    assert kind_of(Classifier().rule(TypeError, kind="discard"), TypeError()) == "discard"
    assert kind_of(Classifier().rule(OSError, kind="transient"), DISK_FULL) == "transient"


def test_base_class_wins_over_a_base_class_further_up():
    assert kind_of(Classifier().rule(BankError, kind="row"), BankUnreachable()) == "row"
    assert kind_of(Classifier().rule(OSError, kind="row"), BankUnreachable()) == "transient"
    assert kind_of(Classifier().rule(httpx.TransportError, kind="row"), httpx.ReadTimeout("x")) == "transient"


def test_base_class_does_not_win_over_a_code():
    assert kind_of(Classifier().rule(psycopg.Error, kind="transient"), pg.UniqueViolation()) == "row"
    assert (
        kind_of(Classifier().rule(psycopg.Error, kind="transient"), psycopg.errors.ProgrammingError("x")) == "permanent"
    )


def test_shorter_sqlstate_does_not_win_over_a_longer_one():
    by_class = Classifier().rule(sqlstate="40*", kind="permanent").rule(sqlstate="23*", kind="permanent")
    assert kind_of(by_class, pg.DeadlockDetected()) == "retry_now"
    assert kind_of(by_class, pg.StatementCompletionUnknown()) == "ambiguous"
    assert kind_of(by_class, pg.TransactionIntegrityConstraintViolation()) == "permanent"
    assert kind_of(by_class, pg.UniqueViolation()) == "permanent"
    assert kind_of(Classifier().rule(sqlstate="2*", kind="permanent"), pg.UniqueViolation()) == "row"
    assert kind_of(Classifier().rule(sqlstate="40P01", kind="row"), pg.DeadlockDetected()) == "row"


def test_rule_with_more_conditions_wins():
    classifier = (
        Classifier()
        .rule(status=409, body="already", kind="discard")
        .rule(status=409, kind="row")
        .rule(body="already", kind="permanent")
    )
    assert kind_of(classifier, httpx.Response(409, text="already there")) == "discard"
    assert kind_of(classifier, httpx.Response(409, text="conflict")) == "row"


def test_longer_sqlstate_and_nearer_class_win():
    classifier = Classifier().rule(sqlstate="23505", kind="discard").rule(sqlstate="23*", kind="permanent")
    assert kind_of(classifier, pg.UniqueViolation()) == "discard"
    classifier = Classifier().rule(BankDown, kind="transient").rule(BankError, kind="row")
    assert kind_of(classifier, BankDown()) == "transient"
    assert kind_of(classifier, BankError()) == "row"


def test_later_of_two_equal_rules_wins():
    assert kind_of(Classifier().rule(BankDown, kind="row").rule(BankDown, kind="transient"), BankDown()) == "transient"


def test_outranked_rule_does_not_hide_another_one():
    classifier = Classifier().rule(status=409, kind="row").rule(httpx.HTTPError, kind="permanent")
    response = httpx.Response(409, request=httpx.Request("GET", "https://example.com/"))
    error = httpx.HTTPStatusError("conflict", request=response.request, response=response)
    assert kind_of(classifier, error) == "row"


def test_all_conditions_must_match():
    classifier = Classifier().rule(
        OSError, errno=errno.ENOSPC, when=lambda error: "tmp" in str(error), kind="transient"
    )
    assert kind_of(classifier, OSError(errno.ENOSPC, "full", "/tmp/x")) == "transient"
    assert kind_of(classifier, OSError(errno.ENOSPC, "full", "/data/x")) == "permanent"
    assert kind_of(classifier, OSError(errno.EROFS, "read-only", "/tmp/x")) == "permanent"


def test_status_can_be_one_or_several_or_a_range():
    classifier = (
        Classifier()
        .rule(status=409, kind="row")
        .rule(status={400, 402}, kind="row")
        .rule(status=range(520, 530), kind="transient")
    )
    kinds = {status: kind_of(classifier, httpx.Response(status)) for status in (400, 401, 402, 409, 519, 520, 529, 530)}
    assert kinds == {
        400: "row",
        401: "auth",
        402: "row",
        409: "row",
        519: "ambiguous",
        520: "transient",
        529: "transient",
        530: "ambiguous",
    }


def test_predicate_gets_the_exception_or_the_response():
    seen = []
    classifier = Classifier().rule(when=lambda failure: seen.append(failure) or True, kind="row")
    failures = [BankDown(), httpx.Response(500)]
    assert [kind_of(classifier, failure) for failure in failures] == ["row", "row"]
    assert seen == failures


def test_predicate_is_not_called_if_another_condition_fails():
    classifier = Classifier().rule(BankDown, when=lambda failure: 1 / 0, kind="row")
    assert classifier.classify(ValueError()) == classify(ValueError())


def test_predicate_that_raises_is_seen():
    def is_closed(failure):
        return failure.closed

    verdict = Classifier().rule(BankDown, when=is_closed, kind="transient", name="bank").classify(BankDown())
    assert (verdict.kind, verdict.rule) == (Kind.PERMANENT, "bank")
    assert verdict.reason == "the predicate of bank raised AttributeError"
    assert "closed" in verdict.detail


def test_name_and_reason_can_be_set():
    classifier = Classifier().rule(BankDown, kind="transient", name="bank.down", reason="the bank sleeps at night")
    verdict = classifier.classify(BankDown())
    assert (verdict.rule, verdict.reason) == ("bank.down", "the bank sleeps at night")


def test_default_name_comes_from_the_conditions():
    def late(failure):
        return True

    classifier = (
        Classifier()
        .rule((BankDown, TimeoutError), kind="row", status=[500, 502], body="x", errno=5, sqlstate="23*", when=late)
        .rule(status=range(500, 600), kind="row")
    )
    first, second = (rule.name for rule in classifier.rules)
    assert first.startswith("rule(BankDown|TimeoutError, status=500|502, when=")
    assert first.endswith("late, sqlstate=23*, errno=5, body='x')")
    assert second == "rule(status=500…599)"


def test_server_message_is_shown_with_the_users_kind():
    response = httpx.Response(409, json={"message": "version 3 expected"}, headers={"Retry-After": "4"})
    verdict = Classifier().rule(status=409, kind="transient").classify(response)
    assert (verdict.detail, verdict.status, verdict.retry_after) == ("version 3 expected", 409, 4.0)
    assert Classifier().rule(status=409, kind="row").classify(response).retry_after is None


def test_rule_outranks_a_verdict_stated_by_the_program():
    class Mine(Transient):
        pass

    assert kind_of(Classifier().rule(Mine, kind="row"), Mine()) == "row"
    assert kind_of(Classifier().rule(Exception, kind="row"), Mine()) == "transient"


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((), {"kind": "transient"}, "a rule needs a condition"),
        ((BankDown,), {"kind": "sometimes"}, "kind must be one of retry_now, transient"),
        ((), {"kind": "row", "status": 99}, "status must be from 100 to 599, not 99"),
        ((), {"kind": "row", "status": range(590, 601)}, "status must be from 100 to 599, not 600"),
        ((), {"kind": "row", "status": []}, "status must name at least one number"),
        ((), {"kind": "row", "errno": -1}, "errno must be from 1 to"),
        ((), {"kind": "row", "sqlstate": "2350"}, "sqlstate must be five digits or capital letters"),
        ((), {"kind": "row", "sqlstate": "*"}, "sqlstate must be five digits or capital letters"),
        ((), {"kind": "row", "sqlstate": "40p01"}, "sqlstate must be five digits or capital letters"),
        ((), {"kind": "row", "body": ""}, "body must be a text to look for"),
        (((),), {"kind": "row"}, "must not be empty"),
        ((KeyboardInterrupt,), {"kind": "row"}, "signal to stop"),
    ],
)
def test_invalid_rule_is_rejected_in_one_sentence(arguments, options, says):
    with pytest.raises(ValueError) as caught:
        Classifier().rule(*arguments, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("BankDown",), {"kind": "row"}, "exception class or a tuple"),
        ((BankDown(),), {"kind": "row"}, "exception class or a tuple"),
        ((int,), {"kind": "row"}, "exception class or a tuple"),
        (([BankDown],), {"kind": "row"}, "exception class or a tuple"),
        ((BankDown,), {"kind": 5}, "kind must be a redrive.Kind or its name"),
        ((), {"kind": "row", "status": "409"}, "status must be an int"),
        ((), {"kind": "row", "status": 4.5}, "status must be an int"),
        ((), {"kind": "row", "status": True}, "status must be an int"),
        ((), {"kind": "row", "status": ["409"]}, "status must be an int"),
        ((), {"kind": "row", "sqlstate": 23505}, "sqlstate must be a string"),
        ((), {"kind": "row", "when": "x > 1"}, "when must be a function"),
        ((), {"kind": "row", "body": b"x"}, "body must be a string"),
    ],
)
def test_rule_of_the_wrong_types_is_rejected_in_one_sentence(arguments, options, says):
    with pytest.raises(TypeError, match=says):
        Classifier().rule(*arguments, **options)


def test_invalid_kind_of_unknown_errors_is_rejected():
    with pytest.raises(ValueError, match="unknown must be one of retry_now, transient"):
        Classifier(unknown="maybe")


def test_wait_of_a_rule_counts_where_the_failure_has_none():
    classifier = Classifier().rule(status=409, kind="rate_limited", retry_after=20)
    assert classifier.classify(httpx.Response(409)).retry_after == 20
    assert classifier.classify(httpx.Response(409, headers={"Retry-After": "7"})).retry_after == 7
    with pytest.raises(ValueError, match="retry_after must be a finite number of seconds from 0 up, not -1"):
        Classifier().rule(status=409, kind="rate_limited", retry_after=-1)
