"""Clients of web APIs. Most of their errors carry the status of an answer, which decides; these are the others."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import (
    AMBIGUOUS,
    AUTH,
    GARBLED,
    PERMANENT,
    QUOTA,
    RATE_LIMITED,
    RETRY_NOW,
    ROW,
    TRANSIENT,
    Entry,
)
from redrive.classify.tables.web import WEB_TYPES

# google-api-core and google-auth, which BigQuery, Cloud Storage and Pub/Sub raise.
_GOOGLE = Pack(
    "google",
    types={
        "Aborted": Entry(RETRY_NOW, "aborted by another operation"),
        "AlreadyExists": Entry(PERMANENT, "exists already"),
        "AsyncRestUnsupportedParameterError": Entry(PERMANENT, "bug: parameter not supported"),
        "BadGateway": Entry(TRANSIENT, "bad gateway"),
        "BadRequest": Entry(PERMANENT, "bad request"),
        "Cancelled": Entry(PERMANENT, "call cancelled"),
        "ClientError": Entry(PERMANENT, "request refused"),
        "Conflict": Entry(PERMANENT, "conflict"),
        "DataLoss": Entry(PERMANENT, "data lost"),
        "DeadlineExceeded": Entry(TRANSIENT, "deadline exceeded"),
        "DefaultCredentialsError": Entry(AUTH, "no credentials"),
        "DuplicateCredentialArgs": Entry(PERMANENT, "bug: credentials given twice"),
        "FailedPrecondition": Entry(PERMANENT, "precondition failed"),
        "Forbidden": Entry(PERMANENT, "forbidden"),
        "GatewayTimeout": Entry(TRANSIENT, "gateway timed out"),
        "GoogleAPICallError": Entry(AMBIGUOUS, "Google API error"),
        "GoogleAPIError": Entry(AMBIGUOUS, "Google API error"),
        "GoogleAuthError": Entry(AUTH, "login failed"),
        "InternalServerError": Entry(AMBIGUOUS, "internal server error"),
        "InvalidArgument": Entry(PERMANENT, "invalid argument"),
        "MethodNotImplemented": Entry(PERMANENT, "not implemented"),
        "NotFound": Entry(ROW, "not found"),
        "OutOfRange": Entry(PERMANENT, "out of range"),
        "PermissionDenied": Entry(PERMANENT, "permission denied"),
        "RefreshError": Entry(AUTH, "credentials not refreshable"),
        "ResourceExhausted": Entry(RATE_LIMITED, "resource exhausted"),
        "RetryError": Entry(TRANSIENT, "retries of the Google client exhausted"),
        "ServerError": Entry(AMBIGUOUS, "server error"),
        "ServiceUnavailable": Entry(TRANSIENT, "service unavailable"),
        "TooManyRequests": Entry(RATE_LIMITED, "too many requests"),
        "TransportError": Entry(TRANSIENT, "credentials server not reachable"),
        "Unauthenticated": Entry(AUTH, "not authenticated"),
        "Unauthorized": Entry(AUTH, "not authenticated"),
        "Unknown": Entry(AMBIGUOUS, "unknown error of the server"),
    },
    # Its `retryable` states whether the token server refused, or only failed.
    codes=(Codes("google.RefreshError", "retryable", {True: Entry(TRANSIENT, "credentials server failed")}),),
    opens={"RetryError": "cause"},
    wraps=True,
)


_GENERATED_TYPES = {
    "APIConnectionError": Entry(TRANSIENT, "connection failed"),
    "APIError": Entry(AMBIGUOUS, "API error"),
    "APIResponseValidationError": Entry(GARBLED, "answer not as expected"),
    "APITimeoutError": Entry(TRANSIENT, "timed out"),
}
_EXHAUSTED = {code: Entry(QUOTA, "quota exhausted") for code in ("insufficient_quota", "billing_hard_limit_reached")}

# The clients of OpenAI and Anthropic are generated alike. Errors with a status are classified by it.
_GENERATED = (
    Pack("openai", types=_GENERATED_TYPES, codes=(Codes("openai.APIError", "code", _EXHAUSTED),), wraps=True),
    Pack("anthropic", types=_GENERATED_TYPES, wraps=True),
)


def _mirror(library: str, original: str) -> Pack:
    prefix = f"{original}."
    types = {name.removeprefix(prefix): entry for name, entry in WEB_TYPES.items() if name.startswith(prefix)}
    return Pack(library, types=types, wraps=True)


# HTTP clients that have the exceptions of another one.
_MIRRORS = (_mirror("httpx2", "httpx"), _mirror("niquests", "requests"))


_TLS = Entry(AMBIGUOUS, "TLS error")
_REFUSED_DOCUMENTS = Entry(ROW, "some documents refused")
_SHARDS_FAILED = Entry(AMBIGUOUS, "some shards failed")
_NOT_SERIALIZABLE = Entry(PERMANENT, "document not serializable")

_SLACK: dict[str, Entry] = {
    **dict.fromkeys(
        ("account_inactive", "invalid_auth", "not_authed", "token_expired", "token_revoked"),
        Entry(AUTH, "login failed"),
    ),
    **dict.fromkeys(
        ("channel_not_found", "is_archived", "msg_too_long", "no_text", "user_not_found", "users_not_found"),
        Entry(ROW, "request refused by Slack"),
    ),
    **dict.fromkeys(("fatal_error", "internal_error"), Entry(AMBIGUOUS, "internal error of Slack")),
    **dict.fromkeys(("ratelimited", "rate_limited"), Entry(RATE_LIMITED, "rate limited")),
    **dict.fromkeys(("request_timeout", "service_unavailable"), Entry(TRANSIENT, "Slack not available")),
}

PACKS = (
    _GOOGLE,
    *_GENERATED,
    *_MIRRORS,
    Pack(
        "azure",
        types={
            "AzureError": Entry(AMBIGUOUS, "Azure error"),
            "ClientAuthenticationError": Entry(AUTH, "login failed"),
            "CredentialUnavailableError": Entry(AUTH, "no credentials"),
            "DecodeError": Entry(GARBLED, "answer not decodable"),
            "HttpResponseError": Entry(AMBIGUOUS, "HTTP error"),
            "IncompleteReadError": Entry(TRANSIENT, "answer ended too early"),
            "ResourceExistsError": Entry(PERMANENT, "exists already"),
            "ResourceModifiedError": Entry(PERMANENT, "changed meanwhile"),
            "ResourceNotFoundError": Entry(ROW, "not found"),
            "ResponseNotReadError": Entry(PERMANENT, "bug: response not read"),
            "ServiceRequestError": Entry(TRANSIENT, "connection failed"),
            "ServiceResponseError": Entry(TRANSIENT, "answer broke off"),
            "StreamClosedError": Entry(PERMANENT, "bug: stream already closed"),
            "StreamConsumedError": Entry(PERMANENT, "bug: stream already consumed"),
            "TooManyRedirectsError": Entry(PERMANENT, "too many redirects"),
        },
        wraps=True,
    ),
    Pack(
        "docker",
        types={"DockerException": Entry(PERMANENT, "Docker error"), "NotFound": Entry(ROW, "not found")},
        wraps=True,
    ),
    Pack(
        "elastic_transport",
        types={
            "ConnectionError": Entry(TRANSIENT, "connection failed"),
            "ConnectionTimeout": Entry(TRANSIENT, "timed out"),
            "SerializationError": _NOT_SERIALIZABLE,
            "SniffingError": Entry(TRANSIENT, "nodes of the cluster not found"),
            "TlsError": _TLS,
        },
        wraps=True,
    ),
    Pack("elasticsearch", types={"BulkIndexError": _REFUSED_DOCUMENTS, "ScanError": _SHARDS_FAILED}, wraps=True),
    Pack(
        "hvac",
        types={
            "BadGateway": Entry(TRANSIENT, "bad gateway"),
            "InternalServerError": Entry(AMBIGUOUS, "internal server error"),
            "InvalidPath": Entry(ROW, "not found"),
            "RateLimitExceeded": Entry(RATE_LIMITED, "too many requests"),
            "Unauthorized": Entry(AUTH, "not authenticated"),
            "UnexpectedError": Entry(AMBIGUOUS, "unexpected answer"),
            "VaultDown": Entry(TRANSIENT, "Vault sealed or down"),
            "VaultError": Entry(PERMANENT, "request refused by Vault"),
            "VaultNotInitialized": Entry(PERMANENT, "Vault not initialised"),
        },
        wraps=True,
    ),
    Pack(
        "opensearchpy",
        types={
            "BulkIndexError": _REFUSED_DOCUMENTS,
            "ConnectionError": Entry(TRANSIENT, "connection failed"),
            "ConnectionTimeout": Entry(TRANSIENT, "timed out"),
            "ImproperlyConfigured": Entry(PERMANENT, "client configured wrongly"),
            "SSLError": _TLS,
            "ScanError": _SHARDS_FAILED,
            "SerializationError": _NOT_SERIALIZABLE,
        },
        wraps=True,
    ),
    Pack(
        "slack_sdk",
        types={"SlackClientNotConnectedError": Entry(TRANSIENT, "not connected")},
        codes=(Codes("slack_sdk.SlackApiError", "response.data.error", _SLACK),),
        wraps=True,
    ),
    Pack(
        "stripe",
        types={
            "APIConnectionError": Entry(TRANSIENT, "connection failed"),
            "CardError": Entry(ROW, "card refused"),
            "IdempotencyError": Entry(PERMANENT, "idempotency key used for another request"),
            "SignatureVerificationError": Entry(PERMANENT, "signature not valid"),
        },
        wraps=True,
    ),
)
