"""Samples of every pattern of a public scanner, detect-secrets, are masked, or excepted with a reason."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import string

import pytest
from detect_secrets import plugins
from detect_secrets.plugins.base import RegexBasedDetector
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive._internal.masking import mask
from tests.support.examples import examples

_ALPHABET = st.sampled_from(string.ascii_letters + string.digits + " /:.=_+-@'")
_SHORTEST = 16  # what is shorter is a word

_BY_NAME = "found by the name of a variable, between quotes that need not fit; test_masking has the names"
EXCEPTIONS = {
    "ArtifactoryDetector[1]": "words in capitals begin so: APACHESERVER",
    "CloudantDetector[0]": _BY_NAME,
    "CloudantDetector[1]": _BY_NAME,
    "DiscordBotTokenDetector[0]": "nothing but dots marks it; behind Authorization: it is masked",
    "IPPublicDetector[0]": "an address is no secret",
    "IbmCloudIamDetector[0]": _BY_NAME,
    "IbmCosHmacDetector[0]": _BY_NAME,
    "JwtTokenDetector[0]": "any two words behind eyJ; a token has three parts",
    "NpmDetector[0]": "any text behind npm_; a token has 36 characters",
    "SoftlayerDetector[0]": _BY_NAME,
    "TelegramBotTokenDetector[0]": "any 35 characters behind a number; those of tokens begin with AA",
    "TwilioKeyDetector[0]": "the id of an account, not its token",
}

_KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
_WHOLE = {
    "BasicAuthDetector": "https{}",
    "PrivateKeyDetector": f"-----{{}}-----\nPrivate-Lines: 1\n{_KEY}\n",
}
"""Texts around what a pattern matches, where that is only the beginning or the end of a secret."""


def scanner_patterns():
    """The patterns of the scanner, by the names of their detectors."""
    for module in pkgutil.iter_modules(plugins.__path__, f"{plugins.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(value) and issubclass(value, RegexBasedDetector) and not inspect.isabstract(value):
                yield from ((f"{name}[{number}]", pattern) for number, pattern in enumerate(value.denylist))


PATTERNS = dict(scanner_patterns())


def test_scanner_has_patterns_and_the_exceptions_are_among_them():
    assert len(PATTERNS) > 30
    assert EXCEPTIONS.keys() <= PATTERNS.keys()


@pytest.mark.parametrize("name", sorted(PATTERNS.keys() - EXCEPTIONS.keys()))
def test_secret_found_by_the_scanner_is_masked(name):
    pattern, whole = PATTERNS[name], _WHOLE.get(name.partition("[")[0], "{}")

    @settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_regex(pattern, fullmatch=True, alphabet=_ALPHABET))
    def check(sample):
        text = whole.format(sample)
        if len(text) >= _SHORTEST:
            secret = max(filter(None, pattern.fullmatch(sample).groups()), key=len, default="")
            hidden = _KEY if _KEY in text else secret if len(secret) >= _SHORTEST else text
            assert hidden not in mask(f"failed: {text} was refused")

    check()
