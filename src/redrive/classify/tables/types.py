"""Exception types by name, `library.Class`; the bare name is a builtin. The nearest class of an error decides.

The library is the first part of the module's name (see `names`), so a class may move between its submodules.
"""

from __future__ import annotations

from redrive.classify.packs import PACKS
from redrive.classify.packs.pack import Texts
from redrive.classify.tables.drivers import DRIVER_TYPES, NO_CODE_TEXTS
from redrive.classify.tables.entry import AMBIGUOUS, AUTH, DATA, GARBLED, PERMANENT, RESOURCE, TRANSIENT, Entry
from redrive.classify.tables.web import WEB_TYPES

CERTIFICATE = Entry(PERMANENT, "certificate check failed")

CERTIFICATE_TYPES: tuple[str, ...] = (
    "ssl.SSLCertVerificationError",
    "aiohttp.ClientConnectorCertificateError",
    "aiohttp.ServerFingerprintMismatch",
    "urllib3.CertificateError",
)
"""A failed certificate check, wherever it lies below an error, is the cause of the error."""

RESOLVER_TYPES: tuple[str, ...] = ("socket.gaierror", "socket.herror")
"""A name that was not resolved, below a failed connection, is the cause of the failure."""

_BUILTIN_TYPES: dict[str, Entry] = {
    "ArithmeticError": Entry(DATA, "arithmetic error"),
    "AssertionError": Entry(DATA, "assertion failed"),
    "AttributeError": Entry(PERMANENT, "bug: attribute missing"),
    "BlockingIOError": Entry(TRANSIENT, "resource temporarily unavailable"),
    "BrokenPipeError": Entry(TRANSIENT, "broken pipe"),
    "ChildProcessError": Entry(PERMANENT, "no such child process"),
    "ConnectionAbortedError": Entry(TRANSIENT, "connection aborted"),
    "ConnectionError": Entry(TRANSIENT, "connection failed"),
    "ConnectionRefusedError": Entry(TRANSIENT, "connection refused"),
    "ConnectionResetError": Entry(TRANSIENT, "connection reset"),
    "EOFError": Entry(GARBLED, "input ended too early"),
    "FileExistsError": Entry(PERMANENT, "file exists"),
    "FileNotFoundError": Entry(PERMANENT, "no such file or directory"),
    "ImportError": Entry(PERMANENT, "bug: module or name not importable"),
    "IndexError": Entry(DATA, "index out of range"),
    "InterruptedError": Entry(TRANSIENT, "interrupted system call"),
    "IsADirectoryError": Entry(PERMANENT, "is a directory"),
    "KeyError": Entry(DATA, "key missing"),
    "LookupError": Entry(DATA, "lookup failed"),
    "MemoryError": Entry(RESOURCE, "out of memory"),
    "NameError": Entry(PERMANENT, "bug: name not defined"),
    "NotADirectoryError": Entry(PERMANENT, "not a directory"),
    "NotImplementedError": Entry(PERMANENT, "bug: not implemented"),
    "PermissionError": Entry(PERMANENT, "permission denied"),
    "ProcessLookupError": Entry(PERMANENT, "no such process"),
    "RecursionError": Entry(PERMANENT, "bug: recursion too deep"),
    "SyntaxError": Entry(PERMANENT, "bug: syntax error"),
    "TimeoutError": Entry(TRANSIENT, "timed out"),
    "TypeError": Entry(DATA, "wrong type"),
    "UnicodeError": Entry(DATA, "text not in the expected encoding"),
    "ValueError": Entry(DATA, "invalid value"),
}

_STANDARD_LIBRARY_TYPES: dict[str, Entry] = {
    "asyncio.IncompleteReadError": Entry(TRANSIENT, "connection ended too early"),
    "asyncio.QueueEmpty": Entry(TRANSIENT, "queue empty"),
    "asyncio.QueueFull": Entry(TRANSIENT, "queue full"),
    "asyncio.InvalidStateError": Entry(PERMANENT, "bug: future in the wrong state"),
    "concurrent.BrokenExecutor": Entry(AMBIGUOUS, "worker pool broken"),
    "configparser.Error": Entry(PERMANENT, "configuration not readable"),
    "csv.Error": Entry(DATA, "malformed CSV"),
    "decimal.DecimalException": Entry(DATA, "not a usable decimal"),
    "gzip.BadGzipFile": Entry(GARBLED, "malformed gzip data"),
    "http.BadStatusLine": Entry(TRANSIENT, "no valid status line in the answer"),
    "http.HTTPException": Entry(AMBIGUOUS, "HTTP exchange failed"),
    "http.ImproperConnectionState": Entry(PERMANENT, "bug: connection in the wrong state"),
    "http.IncompleteRead": Entry(TRANSIENT, "answer ended too early"),
    "http.InvalidURL": Entry(PERMANENT, "invalid URL"),
    "http.LineTooLong": Entry(AMBIGUOUS, "header line too long"),
    "http.NotConnected": Entry(PERMANENT, "bug: not connected"),
    "http.UnimplementedFileMode": Entry(PERMANENT, "bug: file mode not supported"),
    "http.UnknownProtocol": Entry(PERMANENT, "unknown protocol"),
    "http.UnknownTransferEncoding": Entry(PERMANENT, "unknown transfer encoding"),
    "json.JSONDecodeError": Entry(GARBLED, "malformed JSON"),
    "lzma.LZMAError": Entry(GARBLED, "malformed xz data"),
    "pickle.PickleError": Entry(DATA, "not picklable"),
    "pickle.UnpicklingError": Entry(GARBLED, "malformed pickle"),
    "queue.Empty": Entry(TRANSIENT, "queue empty"),
    "queue.Full": Entry(TRANSIENT, "queue full"),
    "simplejson.JSONDecodeError": Entry(GARBLED, "malformed JSON"),
    "socket.gaierror": Entry(TRANSIENT, "host name not resolved"),
    "socket.herror": Entry(TRANSIENT, "host name not resolved"),
    "ssl.SSLCertVerificationError": CERTIFICATE,
    "ssl.SSLEOFError": Entry(TRANSIENT, "TLS connection ended too early"),
    "ssl.SSLError": Entry(AMBIGUOUS, "TLS error"),
    "ssl.SSLSyscallError": Entry(TRANSIENT, "TLS connection broken"),
    "ssl.SSLWantReadError": Entry(TRANSIENT, "TLS connection not ready"),
    "ssl.SSLWantWriteError": Entry(TRANSIENT, "TLS connection not ready"),
    "ssl.SSLZeroReturnError": Entry(TRANSIENT, "TLS connection closed"),
    "struct.error": Entry(DATA, "malformed binary data"),
    "subprocess.TimeoutExpired": Entry(TRANSIENT, "command timed out"),
    "tarfile.ReadError": Entry(GARBLED, "malformed tar archive"),
    "urllib.ContentTooShortError": Entry(TRANSIENT, "answer ended too early"),
    "urllib.HTTPError": Entry(AMBIGUOUS, "HTTP error"),
    # With an exception as its reason, that one decides; a bare text is "unknown url type" or "no host given".
    "urllib.URLError": Entry(PERMANENT, "URL cannot be opened"),
    # A SyntaxError by inheritance, and about data all the same.
    "xml.ParseError": Entry(GARBLED, "malformed XML"),
    "zipfile.BadZipFile": Entry(GARBLED, "malformed zip archive"),
    "zlib.error": Entry(GARBLED, "malformed compressed data"),
    "zoneinfo.ZoneInfoNotFoundError": Entry(DATA, "unknown time zone"),
}

_LIBRARY_TYPES: dict[str, Entry] = {
    "botocore.BotoCoreError": Entry(PERMANENT, "AWS client misconfigured"),
    "botocore.CapacityNotAvailableError": Entry(TRANSIENT, "AWS client's retry quota spent"),
    "botocore.ChecksumError": Entry(TRANSIENT, "checksum mismatch"),
    "botocore.ClientError": Entry(AMBIGUOUS, "AWS error without a code"),
    "botocore.ConnectionClosedError": Entry(TRANSIENT, "connection closed"),
    "botocore.ConnectionError": Entry(TRANSIENT, "connection failed"),
    "botocore.CredentialRetrievalError": Entry(AUTH, "credentials not retrievable"),
    "botocore.FlexibleChecksumError": Entry(TRANSIENT, "checksum mismatch"),
    "botocore.HTTPClientError": Entry(AMBIGUOUS, "HTTP exchange failed"),
    "botocore.IncompleteReadError": Entry(TRANSIENT, "answer ended too early"),
    "botocore.LoginError": Entry(AUTH, "login failed"),
    "botocore.MetadataRetrievalError": Entry(TRANSIENT, "instance metadata not retrievable"),
    "botocore.NoAuthTokenError": Entry(AUTH, "no token"),
    "botocore.NoCredentialsError": Entry(AUTH, "no credentials"),
    "botocore.ParamValidationError": Entry(DATA, "parameters refused by the AWS client"),
    "botocore.PartialCredentialsError": Entry(AUTH, "incomplete credentials"),
    "botocore.ReadTimeoutError": Entry(TRANSIENT, "read timed out"),
    "botocore.ResponseStreamingError": Entry(TRANSIENT, "answer broke off"),
    "botocore.SSLError": Entry(AMBIGUOUS, "TLS error"),
    "botocore.SSOError": Entry(AUTH, "single sign-on failed"),
    "botocore.TokenRetrievalError": Entry(AUTH, "token not retrievable"),
    "confluent_kafka.ConcurrentModificationException": Entry(PERMANENT, "bug: consumer used by two threads"),
    "confluent_kafka.IllegalStateException": Entry(PERMANENT, "bug: Kafka client in the wrong state"),
    "confluent_kafka.KafkaException": Entry(AMBIGUOUS, "Kafka error without a code"),
    "grpc.FutureCancelledError": Entry(PERMANENT, "call cancelled"),
    "grpc.FutureTimeoutError": Entry(TRANSIENT, "timed out"),
    "grpc.RpcError": Entry(AMBIGUOUS, "gRPC error without a code"),
    "pydantic.PydanticUserError": Entry(PERMANENT, "bug: pydantic model not usable"),
    "pydantic.ValidationError": Entry(DATA, "validation failed"),
    "pydantic_core.ValidationError": Entry(DATA, "validation failed"),
}

TEXTS: dict[str, Texts] = {
    **{f"{pack.library}.{name}": texts for pack in PACKS for name, texts in pack.texts.items()},
    **NO_CODE_TEXTS,
}
"""By type, patterns in the messages of errors that carry no code."""

TYPES: dict[str, Entry] = {
    **{f"{pack.library}.{name}": entry for pack in PACKS for name, entry in pack.types.items()},
    **_BUILTIN_TYPES,
    **_STANDARD_LIBRARY_TYPES,
    **_LIBRARY_TYPES,
    **WEB_TYPES,
    **DRIVER_TYPES,
}
