"""The text about a policy matches the policy."""

import warnings

import pytest

import redrive
from redrive.explain.dry_call import DEFAULT, ServicePolicy
from redrive.explain.policy_text import document, explain_policy, of_breaker, of_budget, of_keys, of_retry
from redrive.explain.schedule import Duration, fits, schedule


def test_service_is_explained_as_configured():
    service = redrive.Service(
        "bank",
        retry=redrive.Retry(attempts=3),
        breaker=redrive.Breaker(failures=7),
        budget=None,
        credentials=redrive.KeyPool(["first-key-a1b2", "other-key-c3d4"]),
        timeout=4.0,
        idempotent="key",
    )
    found = ServicePolicy.of(service)
    assert (found.name, found.retry.attempts, found.breaker.failures) == ("bank", 3, 7)
    assert (found.budget, found.timeout, found.idempotent) == (None, 4.0, "key")
    assert (
        of_keys(found)
        == "…a1b2, …c3d4; an exhausted key cools down for 60 min, and the call is retried at once with another"
    )
    assert ServicePolicy.of(service.with_options(timeout=2)).timeout == 2


@pytest.mark.parametrize("part", [redrive.Breaker(), redrive.RetryBudget(), redrive.Retry(), redrive.Classifier()])
def test_part_is_explained_by_itself(part):
    found = ServicePolicy.of(part)
    assert found.is_part
    assert found.name == type(part).__name__


def test_object_that_is_no_policy_is_none():
    assert ServicePolicy.of(object()) is None
    assert ServicePolicy.of(redrive.Flow("x")) is None


def test_parts_are_described_in_text():
    assert of_retry(redrive.Retry(attempts=1)) == "one attempt, no retries"
    assert "for transient only" in of_retry(redrive.Retry(on=["transient"]))
    assert of_breaker(None).startswith("none")
    assert "5 failures within 60 s" in of_breaker(redrive.Breaker())
    assert "for 24 s to 36 s" in of_breaker(redrive.Breaker())
    assert of_budget(redrive.RetryBudget()) == "retries are at most 10 % of the calls of the last 60 s, and 10 more"


def test_tokens_are_identified_by_position():
    policy = ServicePolicy.of(redrive.Service("bank", credentials=redrive.Token(lambda: "secret-token")))
    assert of_keys(policy) == "token 1; refreshed after a 401, once per call"


def test_sla_is_met_always_on_average_at_best_or_never():
    total = Duration(10, 20, 30)
    assert [fits(total, sla) for sla in (30, 29, 20, 19, 10, 9)] == [
        *("always", "on average", "on average", "at best", "at best", "never")
    ]


@pytest.mark.parametrize("sla", [5.0, 20.0, 45.0, 60.0])
@pytest.mark.parametrize("timeout", [None, 3.0, 10.0])
def test_each_proposed_change_makes_the_policy_fit(sla, timeout):
    found = explain_policy(DEFAULT, timeout=timeout, sla=sla)
    inside = timeout or 0.0
    assert bool(found.changes) == (found.schedule.total.worst > sla)
    for change in found.changes:
        if change.startswith("a timeout below"):
            assert inside > sla
            continue
        options = eval(f"dict({change})")
        limit = options.pop("timeout", inside)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert schedule(redrive.Retry(**options), inside=limit).total.worst <= sla


def test_breaker_that_ends_the_call_early_is_noted():
    retry = redrive.Retry(attempts=8, within=1_000)
    with pytest.warns(redrive.PolicyWarning, match="fails 5 times opens the circuit"):
        policy = ServicePolicy.of(redrive.Service("bank", retry=retry, breaker=redrive.Breaker()))
    assert "a call that fails alone makes 5 of its 8 attempts: the circuit opened" in explain_policy(policy).notes


def test_budget_without_a_reserve_is_noted():
    policy = ServicePolicy.of(redrive.Service("bank", budget=redrive.RetryBudget(reserve=0)))
    (note,) = explain_policy(policy).notes
    assert note == "a call that fails alone makes 1 of its 5 attempts: the service's retry budget is exhausted"


def test_time_that_ends_before_the_attempts_is_noted():
    policy = ServicePolicy.of(redrive.Service("bank", retry=redrive.Retry(within=15), timeout=6.0))
    notes = explain_policy(policy).notes
    assert "within=15 leaves time for 3 of the 5 attempts at most" in notes


def test_policy_that_retries_only_rate_limits_has_a_schedule():
    policy = ServicePolicy.of(redrive.Retry(on=["rate_limited"]))
    assert len(explain_policy(policy).at_once.starts) == 5


def test_document_has_plain_values():
    import json

    found = document(explain_policy(DEFAULT, timeout=10, sla=60))
    assert json.loads(json.dumps(found)) == found
    assert found["timed_out"] == {"best": 50.0, "mean": 57.5, "worst": 65.0, "fits": "on average", "simulated_calls": 0}


def test_policy_text_matches_its_figures():
    assert of_retry(redrive.Retry(on=())) == "one attempt, no retries"
    assert "no waits between them" in of_retry(redrive.Retry(base=0))
    assert "waits from 0 up to 0.02 s" in of_retry(redrive.Retry(on="retry_now"))
    assert of_breaker(redrive.Breaker(failures=1)).startswith("opens after 1 failure within 60 s, if it is 10 % of")
    assert "another" not in of_keys(ServicePolicy.of(redrive.KeyPool(["the-only-key-1234"])))


def test_notes_of_a_short_time_are_about_some_calls_only():
    found = explain_policy(ServicePolicy.of(redrive.Retry(within=5)))
    assert [note for note in found.notes if "a call that fails alone" in note] == []
