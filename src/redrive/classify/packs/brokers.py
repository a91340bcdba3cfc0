"""Clients of message brokers: kafka-python, aiokafka, pika, aio-pika, kombu, which Celery uses, and nats-py."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, ROW, TRANSIENT, Entry

_NATS = Pack(
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


_TOO_LARGE = Entry(ROW, "message too large")
_MOVED = Entry(TRANSIENT, "group rebalances")

# The names are the same with and without the ending that kafka-python gives them.
_KAFKA: dict[str, Entry] = {
    "AuthorizationError": Entry(PERMANENT, "permission denied"),
    "BrokerNotAvailableError": Entry(TRANSIENT, "broker not available"),
    "CommitFailedError": _MOVED,
    "CorruptRecordError": Entry(TRANSIENT, "record damaged on the way"),
    "IllegalGenerationError": _MOVED,
    "InvalidRecordError": Entry(ROW, "record refused"),
    "InvalidTimestampError": Entry(ROW, "timestamp refused"),
    "KafkaConnectionError": Entry(TRANSIENT, "connection failed"),
    "KafkaError": Entry(PERMANENT, "Kafka error"),
    "KafkaProtocolError": Entry(TRANSIENT, "protocol broken"),
    "KafkaTimeoutError": Entry(TRANSIENT, "timed out"),
    "MessageSizeTooLargeError": _TOO_LARGE,
    "NoBrokersAvailable": Entry(TRANSIENT, "no broker available"),
    "RebalanceInProgressError": _MOVED,
    "RecordListTooLargeError": _TOO_LARGE,
    "RequestTimedOutError": Entry(TRANSIENT, "timed out"),
    "SaslAuthenticationFailedError": Entry(AUTH, "login failed"),
    "UnknownMemberIdError": _MOVED,
}

_AMQP: dict[int, Entry] = {
    311: _TOO_LARGE,
    313: Entry(TRANSIENT, "no consumers"),
    320: Entry(TRANSIENT, "connection closed by an operator"),
    402: Entry(PERMANENT, "invalid path"),
    403: Entry(PERMANENT, "access refused"),
    404: Entry(PERMANENT, "queue or exchange not found"),
    405: Entry(TRANSIENT, "queue locked by another client"),
    406: Entry(PERMANENT, "precondition failed"),
    501: Entry(TRANSIENT, "frame broken"),
    502: Entry(PERMANENT, "bug: frame not valid"),
    503: Entry(PERMANENT, "bug: command not valid"),
    504: Entry(PERMANENT, "bug: channel not open"),
    505: Entry(PERMANENT, "bug: unexpected frame"),
    506: Entry(TRANSIENT, "broker out of resources"),
    530: Entry(PERMANENT, "not allowed"),
    540: Entry(PERMANENT, "not implemented"),
    541: Entry(AMBIGUOUS, "internal error of the broker"),
}

_HANDSHAKE_LOST = (("StreamLostError|EOF|ConnectionReset", Entry(TRANSIENT, "connection lost during the handshake")),)

PACKS = (
    _NATS,
    Pack(
        "kafka",
        types={**_KAFKA, "RetriableError": Entry(TRANSIENT, "retriable error of Kafka")},
        wraps=True,
    ),
    Pack(
        "aiokafka",
        types={
            **_KAFKA,
            "AuthenticationFailedError": Entry(AUTH, "login failed"),
            "ConsumerStoppedError": Entry(PERMANENT, "consumer stopped"),
            "IllegalOperation": Entry(PERMANENT, "bug: client used wrongly"),
        },
        # Whether its authors advise a retry.
        codes=(Codes("aiokafka.BrokerResponseError", "retriable", {True: Entry(TRANSIENT, "retriable error")}),),
        wraps=True,
    ),
    Pack(
        "pika",
        types={
            "AMQPChannelError": Entry(PERMANENT, "channel used wrongly"),
            "AMQPConnectionError": Entry(TRANSIENT, "connection failed"),
            "AMQPConnectorException": Entry(TRANSIENT, "connection failed"),
            "AMQPError": Entry(PERMANENT, "AMQP error"),
            "AuthenticationError": Entry(AUTH, "login failed"),
            "ChannelWrongStateError": Entry(TRANSIENT, "channel closed"),
            "ConsumerCancelled": Entry(TRANSIENT, "consumer cancelled by the broker"),
            "IncompatibleProtocolError": Entry(PERMANENT, "protocol not supported"),
            "NackError": Entry(TRANSIENT, "message not accepted by the broker"),
            "ProbableAccessDeniedError": Entry(PERMANENT, "access to the virtual host denied"),
            "ProbableAuthenticationError": Entry(AUTH, "login failed"),
            "UnroutableError": Entry(PERMANENT, "no queue for the message"),
        },
        codes=(
            Codes("pika.ChannelClosed", "reply_code", _AMQP),
            Codes("pika.ConnectionClosed", "reply_code", _AMQP),
        ),
        texts={"IncompatibleProtocolError": _HANDSHAKE_LOST},
        wraps=True,
    ),
    Pack(
        "aiormq",
        types={
            "AMQPConnectionError": Entry(TRANSIENT, "connection failed"),
            "AMQPError": Entry(PERMANENT, "AMQP error"),
            "AuthenticationError": Entry(AUTH, "login failed"),
            "ChannelAccessRefused": Entry(PERMANENT, "access refused"),
            "ChannelClosed": Entry(PERMANENT, "channel closed by the broker"),
            "ChannelInvalidStateError": Entry(TRANSIENT, "channel closed"),
            "ChannelLockedResource": Entry(TRANSIENT, "queue locked by another client"),
            "ChannelNotFoundEntity": Entry(PERMANENT, "queue or exchange not found"),
            "ConnectionNotAllowed": Entry(PERMANENT, "not allowed"),
            "DeliveryError": Entry(TRANSIENT, "message not accepted by the broker"),
            "IncompatibleProtocolError": Entry(PERMANENT, "protocol not supported"),
            "ProbableAuthenticationError": Entry(AUTH, "login failed"),
            "PublishError": Entry(PERMANENT, "no queue for the message"),
        },
        wraps=True,
    ),
    Pack(
        "kombu",
        types={
            "ContentDisallowed": Entry(ROW, "content type not allowed"),
            "KombuError": Entry(PERMANENT, "messaging error"),
            "LimitExceeded": Entry(TRANSIENT, "too many connections or channels"),
            "OperationalError": Entry(TRANSIENT, "broker not available"),
            "SerializationError": Entry(ROW, "message not encodable or decodable"),
        },
        wraps=True,
    ),
    Pack(
        "amqp",
        types={
            "AccessRefused": Entry(AUTH, "access refused"),
            "AMQPError": Entry(PERMANENT, "AMQP error"),
            "ContentTooLarge": _TOO_LARGE,
            "InternalError": Entry(AMBIGUOUS, "internal error of the broker"),
            "MessageNacked": Entry(TRANSIENT, "message not accepted by the broker"),
            "RecoverableChannelError": Entry(TRANSIENT, "channel closed"),
            "RecoverableConnectionError": Entry(TRANSIENT, "connection lost"),
        },
        wraps=True,
    ),
)
