"""google-api-core and google-auth, which BigQuery, Cloud Storage and Pub/Sub raise."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, RATE_LIMITED, RETRY_NOW, ROW, TRANSIENT, Entry

PACK = Pack(
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
