"""The operating system's error numbers, by name: the numbers differ between systems."""

from __future__ import annotations

import errno
import sys

from redrive.classify.tables.entry import AMBIGUOUS, PERMANENT, RESOURCE, TRANSIENT, Entry

_BY_NAME: dict[str, Entry] = {
    "ENOSPC": Entry(PERMANENT, "no space left on the device"),
    "EDQUOT": Entry(PERMANENT, "disk quota exceeded"),
    "EROFS": Entry(PERMANENT, "read-only file system"),
    "EACCES": Entry(PERMANENT, "permission denied"),
    "EPERM": Entry(PERMANENT, "operation not permitted"),
    "ENOENT": Entry(PERMANENT, "no such file or directory"),
    "EEXIST": Entry(PERMANENT, "file exists"),
    "ENOTDIR": Entry(PERMANENT, "not a directory"),
    "EISDIR": Entry(PERMANENT, "is a directory"),
    "ENOTEMPTY": Entry(PERMANENT, "directory not empty"),
    "ENAMETOOLONG": Entry(PERMANENT, "file name too long"),
    "EFBIG": Entry(PERMANENT, "file too large"),
    "ELOOP": Entry(PERMANENT, "too many levels of symbolic links"),
    "ENOEXEC": Entry(PERMANENT, "not an executable"),
    "EINVAL": Entry(PERMANENT, "invalid argument"),
    "EBADF": Entry(PERMANENT, "bad file descriptor"),
    "EADDRINUSE": Entry(PERMANENT, "address already in use"),
    "ETIMEDOUT": Entry(TRANSIENT, "connection timed out"),
    "ECONNRESET": Entry(TRANSIENT, "connection reset"),
    "ECONNREFUSED": Entry(TRANSIENT, "connection refused"),
    "ECONNABORTED": Entry(TRANSIENT, "connection aborted"),
    "EPIPE": Entry(TRANSIENT, "broken pipe"),
    "ENOTCONN": Entry(TRANSIENT, "not connected"),
    "ESHUTDOWN": Entry(TRANSIENT, "connection shut down"),
    "EHOSTUNREACH": Entry(TRANSIENT, "host unreachable"),
    "EHOSTDOWN": Entry(TRANSIENT, "host down"),
    "ENETUNREACH": Entry(TRANSIENT, "network unreachable"),
    "ENETDOWN": Entry(TRANSIENT, "network down"),
    "ENETRESET": Entry(TRANSIENT, "network dropped the connection"),
    "EADDRNOTAVAIL": Entry(TRANSIENT, "no local address or port available"),
    "ENOBUFS": Entry(TRANSIENT, "no buffer space available"),
    "EAGAIN": Entry(TRANSIENT, "resource temporarily unavailable"),
    "EWOULDBLOCK": Entry(TRANSIENT, "resource temporarily unavailable"),
    "EINTR": Entry(TRANSIENT, "interrupted system call"),
    "EBUSY": Entry(TRANSIENT, "device or resource busy"),
    "ETXTBSY": Entry(TRANSIENT, "text file busy"),
    "EDEADLK": Entry(TRANSIENT, "resource deadlock avoided"),
    "ESTALE": Entry(TRANSIENT, "stale file handle"),
    "EREMOTEIO": Entry(AMBIGUOUS, "remote I/O error"),
    "EIO": Entry(AMBIGUOUS, "input/output error"),
    # Others may close theirs, or this process leaks: a small budget finds out.
    "EMFILE": Entry(AMBIGUOUS, "too many open files"),
    "ENFILE": Entry(AMBIGUOUS, "too many open files in the system"),
    "ENOMEM": Entry(RESOURCE, "out of memory"),
}

ERRNO: dict[int, tuple[str, Entry]] = {
    number: (name, _BY_NAME[name]) for number, name in errno.errorcode.items() if name in _BY_NAME
}
"""Number → name and entry, as far as this system has the name."""

RESOLVER_NUMBERS: dict[str, int] = (
    {"EAI_FAMILY": -6, "EAI_SOCKTYPE": -7, "EAI_SERVICE": -8}
    if sys.platform.startswith("linux")
    else {"EAI_FAMILY": 5, "EAI_SERVICE": 9, "EAI_SOCKTYPE": 10}
)
"""Numbers of the resolver that blame the request: of glibc and musl, else of BSD and macOS."""
