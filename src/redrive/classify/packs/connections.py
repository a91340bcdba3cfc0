"""Connections that stay open: SSH and SFTP (paramiko, asyncssh), WebSockets (websockets, websocket-client)."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, ROW, TRANSIENT, Entry

# paramiko has one class for a lost connection, an unknown host and a bad key, and only the message differs.
_SSH_TEXTS = (
    (
        "protocol banner|no existing session|session not active|connection dropped|server connection|timeout|timed out"
        "|not connected|channel closed|connection (?:lost|reset|closed)|transport shut down",
        Entry(TRANSIENT, "SSH connection lost"),
    ),
)

_CHANNEL: dict[int, Entry] = {
    1: Entry(PERMANENT, "administratively prohibited"),
    2: Entry(TRANSIENT, "connection failed"),
    3: Entry(PERMANENT, "unknown channel type"),
    4: Entry(TRANSIENT, "resource shortage"),
}

# RFC 6455, 7.4.1, and the registry of close codes.
_CLOSED: dict[int, Entry] = {
    1002: Entry(PERMANENT, "protocol error"),
    1003: Entry(PERMANENT, "data not accepted"),
    1007: Entry(ROW, "message not valid"),
    1008: Entry(PERMANENT, "policy violated"),
    1009: Entry(ROW, "message too big"),
    1010: Entry(PERMANENT, "extension missing"),
    1011: Entry(AMBIGUOUS, "internal error"),
}

PACKS = (
    Pack(
        "paramiko",
        types={
            "AuthenticationException": Entry(AUTH, "login failed"),
            "BadHostKeyException": Entry(PERMANENT, "host key is not the expected one"),
            "ChannelException": Entry(AMBIGUOUS, "channel not opened"),
            "ConfigParseError": Entry(PERMANENT, "configuration not readable"),
            "IncompatiblePeer": Entry(PERMANENT, "no algorithm in common"),
            "NoValidConnectionsError": Entry(TRANSIENT, "connection failed"),
            "ProxyCommandFailure": Entry(AMBIGUOUS, "proxy command failed"),
            "SFTPError": Entry(AMBIGUOUS, "SFTP error"),
            "SSHException": Entry(PERMANENT, "SSH error"),
        },
        codes=(Codes("paramiko.ChannelException", "code", _CHANNEL),),
        texts={"SSHException": _SSH_TEXTS},
        opens={"NoValidConnectionsError": "errors"},
        wraps=True,
    ),
    Pack(
        "asyncssh",
        types={
            "ChannelOpenError": Entry(AMBIGUOUS, "channel not opened"),
            "ConnectionLost": Entry(TRANSIENT, "connection lost"),
            "DisconnectError": Entry(TRANSIENT, "disconnected"),
            "Error": Entry(PERMANENT, "SSH error"),
            "HostKeyNotVerifiable": Entry(PERMANENT, "host key not trusted"),
            "IllegalUserName": Entry(AUTH, "user name not valid"),
            "KeyExchangeFailed": Entry(PERMANENT, "no algorithm in common"),
            "PermissionDenied": Entry(AUTH, "login failed"),
            "ProtocolNotSupported": Entry(PERMANENT, "protocol not supported"),
            "SFTPConnectionLost": Entry(TRANSIENT, "connection lost"),
            "SFTPError": Entry(PERMANENT, "SFTP error"),
            "SFTPFailure": Entry(AMBIGUOUS, "SFTP operation failed"),
            "SFTPLockConflict": Entry(TRANSIENT, "file locked"),
            "SFTPNoConnection": Entry(TRANSIENT, "not connected"),
            "SFTPNoSuchFile": Entry(ROW, "no such file"),
            "SFTPNoSuchPath": Entry(ROW, "no such path"),
        },
        wraps=True,
    ),
    Pack(
        "websockets",
        types={
            "ConcurrencyError": Entry(PERMANENT, "bug: connection used by two tasks"),
            "ConnectionClosed": Entry(TRANSIENT, "connection closed"),
            "InvalidHandshake": Entry(PERMANENT, "handshake refused"),
            "InvalidMessage": Entry(TRANSIENT, "no valid answer to the handshake"),
            "InvalidURI": Entry(PERMANENT, "invalid URI"),
            "PayloadTooBig": Entry(ROW, "message too big"),
            "ProxyError": Entry(TRANSIENT, "proxy failed"),
            "WebSocketException": Entry(PERMANENT, "WebSocket error"),
        },
        codes=(Codes("websockets.ConnectionClosed", "rcvd.code", _CLOSED),),
        wraps=True,
    ),
    Pack(
        "websocket",
        types={
            "WebSocketAddressException": Entry(TRANSIENT, "host name not resolved"),
            "WebSocketConnectionClosedException": Entry(TRANSIENT, "connection closed"),
            "WebSocketException": Entry(PERMANENT, "WebSocket error"),
            "WebSocketPayloadException": Entry(ROW, "message not valid"),
            "WebSocketProtocolException": Entry(AMBIGUOUS, "protocol broken"),
            "WebSocketProxyException": Entry(TRANSIENT, "proxy failed"),
            "WebSocketTimeoutException": Entry(TRANSIENT, "timed out"),
        },
        wraps=True,
    ),
)
