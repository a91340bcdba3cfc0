"""Mail and file transfer of the standard library."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, ROW, TRANSIENT, Entry

# By RFC 5321, 4xx is "try again later" and 5xx "do not".
_SMTP: dict[int, Entry] = {
    **{code: Entry(TRANSIENT, "mail server asks to try again later") for code in range(400, 500)},
    **{code: Entry(PERMANENT, "mail server refuses") for code in range(500, 600)},
    552: Entry(ROW, "message too large"),
    535: Entry(AUTH, "login refused"),
}

PACKS = (
    Pack(
        "smtplib",
        types={
            "SMTPAuthenticationError": Entry(AUTH, "login refused"),
            "SMTPConnectError": Entry(TRANSIENT, "connection failed"),
            "SMTPException": Entry(AMBIGUOUS, "mail not sent"),
            "SMTPNotSupportedError": Entry(PERMANENT, "not supported by the mail server"),
            "SMTPRecipientsRefused": Entry(ROW, "recipients refused"),
            "SMTPServerDisconnected": Entry(TRANSIENT, "mail server hung up"),
        },
        codes=(
            Codes("smtplib.SMTPResponseException", "smtp_code", _SMTP),
            # Raised where every recipient was refused, temporarily or permanently.
            Codes("smtplib.SMTPRecipientsRefused", "recipients.*.0", dict.fromkeys(range(400, 500), _SMTP[450])),
        ),
    ),
    Pack(
        "ftplib",
        types={
            "Error": Entry(AMBIGUOUS, "file transfer failed"),
            "error_perm": Entry(PERMANENT, "file server refuses"),
            "error_proto": Entry(TRANSIENT, "protocol broken"),
            "error_reply": Entry(AMBIGUOUS, "unexpected answer"),
            "error_temp": Entry(TRANSIENT, "file server asks to try again later"),
        },
        # The code is the beginning of the message.
        texts={
            "error_perm": (
                ("^53[0-2]", Entry(AUTH, "login refused")),
                ("^550", Entry(ROW, "file not found or not accessible")),
            ),
            "error_temp": (("^430", Entry(AUTH, "login refused")),),
        },
    ),
    Pack(
        "imaplib",
        types={
            "IMAP4.abort": Entry(TRANSIENT, "connection lost"),
            "IMAP4.error": Entry(PERMANENT, "mail server refuses"),
            "IMAP4.readonly": Entry(PERMANENT, "mailbox is read-only"),
        },
        # RFC 5530
        texts={
            "IMAP4.error": (
                (
                    r"\* BYE|\[UNAVAILABLE\]|\[INUSE\]|\[LIMIT\]",
                    Entry(TRANSIENT, "mail server asks to try again later"),
                ),
                (r"\[AUTHENTICATIONFAILED\]|\[EXPIRED\]", Entry(AUTH, "login refused")),
            )
        },
    ),
    Pack(
        "poplib",
        types={"error_proto": Entry(PERMANENT, "mail server refuses")},
        # RFC 2449 and 3206
        texts={
            "error_proto": (
                (r"\[SYS/TEMP\]|\[IN-USE\]|\[LOGIN-DELAY\]", Entry(TRANSIENT, "mail server asks to try again later")),
                (r"\[AUTH\]", Entry(AUTH, "login refused")),
                ("-ERR EOF", Entry(TRANSIENT, "connection closed")),
            )
        },
    ),
)
