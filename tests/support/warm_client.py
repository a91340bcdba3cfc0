"""The command that stands in for `python` where a warm server runs: see `warm_server.py`.

    python -I -S warm_client.py SOCKET [-W ACTION …] -m MODULE|-c CODE|FILE [ARGUMENT …]

It hands its files, directory and environment to the server, forwards signals, and ends the way the program ended. It
imports only built-in modules, because its own start-up is paid for hundreds of times.
"""

import _signal
import _socket
import posix
import sys


def quoted(text):
    """Return a string as JSON."""
    escaped = {'"': '\\"', "\\": "\\\\"}
    shown = (escaped.get(char) or (char if " " <= char < "\x7f" else _escaped(char)) for char in text)
    return '"' + "".join(shown) + '"'


def _escaped(char):
    number = ord(char)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def listed(items):
    """Return JSON values as a JSON list."""
    return "[" + ",".join(items) + "]"


def decoded(raw):
    """Return a file name or variable as text, undecodable bytes as surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def request(words):
    """Return the request as JSON, and the numbers of the files that go with it."""
    actions = []
    while words[0] == "-W":
        actions.append(words[1])
        words = words[2:]
    if words[0] not in ("-m", "-c"):
        words = ["file", *words]
    numbers = open_files()
    environ = ",".join(f"{quoted(decoded(name))}:{quoted(decoded(value))}" for name, value in posix.environ.items())
    fields = {
        "cwd": quoted(posix.getcwd()),
        "environ": "{" + environ + "}",
        "numbers": listed(map(str, numbers)),
        "warnings": listed(map(quoted, actions)),
        "program": listed(map(quoted, words[:2])),
        "arguments": listed(map(quoted, words[2:])),
    }
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}", numbers


def open_files():
    """Return the numbers of the files this process was given."""
    numbers = []
    for name in posix.listdir("/proc/self/fd"):
        try:
            posix.fstat(int(name))
        except OSError:  # the directory that was listed
            continue
        numbers.append(int(name))
    return sorted(numbers)


def main():
    """Have the program run, and end as it does."""
    text, numbers = request(sys.argv[2:])
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(sys.argv[1])
    body = text.encode()
    attached = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(n.to_bytes(4, sys.byteorder) for n in numbers))
    connection.sendmsg([b"%8d" % len(body)], [attached])
    connection.sendall(body)
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, frame: connection.sendall(b"%d " % number))
    for number in numbers:  # a reader waits for the end of what the program writes, not for the end of this process
        posix.close(number)
    status = connection.recv(16)
    code = int(status or 70)
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL) if -code != _signal.SIGKILL else None
        posix.kill(posix.getpid(), -code)
    posix._exit(code)


main()
