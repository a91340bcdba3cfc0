"""A delivery failure has a reason and shows nothing of the channel's address."""

import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.alerts.delivery.channels import concealed, end_of

secrets = st.text(string.ascii_letters + string.digits + "-_.~!+*", min_size=8, max_size=60).filter(
    lambda secret: secret not in "https://hooks.example/services/T0/B0/ etl --token notify answered"
)
TARGETS = [
    "https://hooks.example/services/T0/B0/{}",
    "https://etl:{}@hooks.example/x",
    "https://{}@hooks.example/x",
    "https://hooks.example/x?q={}",
    "https://{}.hooks.example/x",
    "tgram://{}/123",
    "slack://{}/x/y",
    "{}",
]


@pytest.mark.parametrize("target", TARGETS)
@given(secret=secrets, before=st.integers(0, 600), after=st.integers(0, 600))
def test_failure_shows_no_part_of_an_address(target, secret, before, after):
    if "{}." in target:  # a name has no dots of its own
        secret = secret.replace(".", "-")
    text = f"{'x' * before} {secret} {target.format(secret)} {target.format(secret).lower()} {'y' * after}"
    for shown in (concealed(text, target.format(secret)), end_of(text, target.format(secret))):
        assert secret not in shown


@given(secret=st.text(min_size=8, max_size=30).filter(lambda text: text.strip() == text and "&" not in text))
def test_password_is_hidden_plain_and_url_encoded(secret):
    written = quote(secret, safe="")
    for target in (f"mailto://etl:{written}@mail.example", f"https://x.example/?k={written}"):
        assert concealed(f"a {secret} b {written} c", target) in ("a *** b *** c", "a *** c")


@pytest.mark.parametrize("words", [("notify", "--token={}"), ("notify", "-H", "X-Key: {}"), ("notify", "{}", "now")])
@given(secret=secrets)
def test_command_failure_shows_program_but_no_argument(words, secret):
    target = tuple(word.format(secret) for word in words)
    shown = concealed(f"notify cannot be started: {' '.join(target[1:])} {secret}", target)
    assert shown.startswith("notify cannot be started")
    assert secret not in shown


def test_mail_recipient_is_shown():
    target = "mailto://etl:hunter2x@mail.example?from=redrive@example.com&to=oncall@example.com"
    assert concealed("oncall@example.com was refused", target) == "oncall@example.com was refused"


def test_reason_is_one_line_of_bounded_length():
    assert concealed("a\nb\x1b[31m", "") == "a b"
    assert len(concealed("x " * 5_000, "")) <= 500
