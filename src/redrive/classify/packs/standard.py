"""Mail and file transfer of the standard library."""

from __future__ import annotations

from redrive.classify.packs.pack import Codes, Pack
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, ROW, TRANSIENT, Entry

# By RFC 5321, 4xx is "try again later" and 5xx "do not".
_SMTP: dict[int, Entry] = {
    **{code: Entry(TRANSIENT, "mail server asks to try again later") for code in range(400, 500)},
    **{code: Entry(PERMANENT, "mail server refuses") for code in range(500, 600)},
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
        codes=(Codes("smtplib.SMTPResponseException", "smtp_code", _SMTP),),
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
    ),
    Pack(
        "imaplib",
        types={
            "IMAP4.abort": Entry(TRANSIENT, "connection lost"),
            "IMAP4.error": Entry(PERMANENT, "mail server refuses"),
            "IMAP4.readonly": Entry(PERMANENT, "mailbox is read-only"),
        },
    ),
    Pack(
        "poplib",
        types={"error_proto": Entry(PERMANENT, "mail server refuses")},
    ),
)
