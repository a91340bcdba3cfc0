"""Clients of web APIs. Most of their errors carry the status of an answer, which decides; these are the others."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, GARBLED, PERMANENT, RATE_LIMITED, ROW, TRANSIENT, Entry

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
