"""Functions for calls that can be killed; processes import this module, so it imports little itself."""

import os
import subprocess
import sys
import time
from pathlib import Path


class NeedsTwo(ValueError):
    """An error that cannot be made from its own `args`, as `pickle` tries to."""

    def __init__(self, code, response):
        super().__init__(f"code {code}")
        self.code, self.response = code, response


def add(first, *, second):
    return first + second


async def add_later(first, second):
    return first + second


def fail():
    raise NeedsTwo(422, response=open(os.devnull))  # noqa: SIM115


def give_generator():
    return (number for number in range(3))


def die():
    os.abort()


def leave_sleepers(directory):
    """Start one ordinary child, and one in a session of its own."""
    for name in ("child", "session"):
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=name != "child"
        )
        write_pid(directory, name, child.pid)


def hang(directory):
    leave_sleepers(directory)
    write_pid(directory, "worker", os.getpid())
    while True:
        time.sleep(600)


def write_pid(directory, name, pid):
    scratch = Path(directory, f"{name}.part")
    scratch.write_text(str(pid))
    scratch.rename(Path(directory, name))


def send(method, url):
    import requests

    response = requests.request(method, url, timeout=60)
    response.raise_for_status()
    return response.json()


async def send_later(method, url):
    import httpx

    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.request(method, url)).json()
