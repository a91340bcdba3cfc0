"""nats-py."""

from __future__ import annotations

from redrive.classify.packs.pack import Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, ROW, TRANSIENT, Entry

PACK = Pack(
    "nats",
    types={
        "APIError": Entry(AMBIGUOUS, "JetStream error"),
        "AuthorizationError": Entry(AUTH, "login failed"),
        "BadRequestError": Entry(PERMANENT, "bad request"),
        "BadSubjectError": Entry(PERMANENT, "invalid subject"),
        "ConnectionClosedError": Entry(TRANSIENT, "connection closed"),
        "ConnectionDrainingError": Entry(TRANSIENT, "connection drains"),
        "ConnectionReconnectingError": Entry(TRANSIENT, "client reconnects"),
        "Error": Entry(PERMANENT, "NATS error"),
        "FlushTimeoutError": Entry(TRANSIENT, "flush timed out"),
        "MaxPayloadError": Entry(ROW, "message too large"),
        "NoRespondersError": Entry(TRANSIENT, "no responders on the subject"),
        "NoServersError": Entry(TRANSIENT, "no server available"),
        "NoStreamResponseError": Entry(TRANSIENT, "no answer of the stream"),
        "NotFoundError": Entry(PERMANENT, "stream or consumer not found"),
        "OutboundBufferLimitError": Entry(TRANSIENT, "outgoing buffer is full"),
        "ProtocolError": Entry(TRANSIENT, "protocol broken"),
        "SecureConnRequiredError": Entry(PERMANENT, "TLS required"),
        "ServerError": Entry(AMBIGUOUS, "server error"),
        "ServiceUnavailableError": Entry(TRANSIENT, "JetStream not available"),
        "SlowConsumerError": Entry(TRANSIENT, "consumer too slow"),
        "StaleConnectionError": Entry(TRANSIENT, "connection went stale"),
        "TimeoutError": Entry(TRANSIENT, "timed out"),
        "UnexpectedEOF": Entry(TRANSIENT, "connection ended too early"),
    },
    texts={"Error": (("empty response", Entry(TRANSIENT, "connection ended too early")),)},
    wraps=True,
)
