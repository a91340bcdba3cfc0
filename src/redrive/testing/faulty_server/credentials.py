"""Credentials as a server checks them: bearer tokens that expire, keys with a quota."""

from __future__ import annotations

from collections.abc import Mapping

from redrive.testing.faulty_server.answer import Answer
from redrive.testing.faulty_server.http1 import Request

TOKEN_PATH = "/token"


class TokenGate:
    """Accepts requests with a bearer token that it issued; each token is valid for a number of requests."""

    def __init__(self, *, uses: int | None) -> None:
        if uses is not None and uses < 1:
            raise ValueError(f"uses must be from 1 up, or None for no limit, not {uses!r}")
        self._uses = uses
        self._left: dict[str, int | None] = {}
        self._issued = 0

    def issue(self) -> str:
        self._issued += 1
        token = f"token-{self._issued:04d}"
        self._left[token] = self._uses
        return token

    def expire_all(self) -> None:
        self._left.clear()

    def grant(self, request: Request) -> Answer:
        """Return the answer of the token endpoint."""
        if request.method != "POST":
            return Answer(405, headers={"Allow": "POST"}, json={"error": f"POST {TOKEN_PATH} issues a token"})
        return Answer(json={"access_token": self.issue(), "token_type": "Bearer"})

    def check(self, request: Request) -> Answer | None:
        token = _bearer(request)
        if token is None:
            return _unauthorized("no bearer token was sent")
        if token not in self._left:
            return _unauthorized("the token is unknown or expired", challenge='Bearer error="invalid_token"')
        left = self._left[token]
        if left is not None:
            if left == 1:
                del self._left[token]
            else:
                self._left[token] = left - 1
        return None


class KeyGate:
    """Accepts requests with a known key until the quota of the key is exhausted."""

    def __init__(
        self, quotas: Mapping[str, int | None], *, header: str | None, query: str | None, bearer: bool
    ) -> None:
        if sum((header is not None, query is not None, bearer)) != 1:
            raise ValueError("say where the key is sent: exactly one of header=, query= and bearer=True")
        for quota in quotas.values():
            if quota is not None and quota < 0:
                raise ValueError(f"a quota must be from 0 up, or None for no limit, not {quota!r}")
        self._quotas = dict(quotas)
        self._header, self._query = header, query
        self._used = dict.fromkeys(quotas, 0)

    def reset(self) -> None:
        self._used = dict.fromkeys(self._quotas, 0)

    def check(self, request: Request) -> Answer | None:
        key = self._key(request)
        if key is None or key not in self._quotas:
            return _unauthorized("no key was sent" if key is None else "the key is unknown")
        quota = self._quotas[key]
        if quota is not None and self._used[key] >= quota:
            return _quota_exceeded(quota)
        self._used[key] += 1
        return None

    def _key(self, request: Request) -> str | None:
        if self._header is not None:
            return request.headers.get(self._header)
        return request.query.get(self._query) if self._query is not None else _bearer(request)


def _bearer(request: Request) -> str | None:
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" and credential else None


def _unauthorized(why: str, *, challenge: str = "Bearer") -> Answer:
    return Answer(401, headers={"WWW-Authenticate": challenge}, json={"error": why})


def _quota_exceeded(quota: int) -> Answer:
    """Return the answer in the form of Google's APIs, which others have copied."""
    message = f"The quota of {quota} requests for this key is exhausted."
    detail = {"message": message, "domain": "usageLimits", "reason": "quotaExceeded"}
    return Answer(403, json={"error": {"code": 403, "message": message, "errors": [detail]}})
