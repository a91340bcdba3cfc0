"""Shared by worker processes that tests kill.

A program of theirs has imported everything already; it reads jobs, a line of JSON each, and forks a process for every
job, so that hundreds of them can be killed in minutes. A process says what it does in the pipe that its job names, a
line for each thing done; what it said before it was killed is there to read.
"""

import fcntl
import functools
import json
import os
import signal
import sys
import traceback
import warnings
from collections import Counter

from tests.support.warm_server import preload


class Mouth:
    """Where a process says what it does; a line is written whole or not at all."""

    def __init__(self, pipe):
        self._pipe = pipe

    def say(self, what, **more):
        os.write(self._pipe, json.dumps({"what": what, **more}).encode() + b"\n")


class Doomed:
    """A mouth to whose owner something happens when it has said a word so many times.

    die_at   it is killed
    halt_at  the thread that said it waits at a gate
    stop_at  the whole process stands still, until it is told to go on
    """

    def __init__(self, mouth, *, die_at=None, halt_at=None, stop_at=None):
        self._mouth = mouth
        self._said = Counter()
        self._fates = {
            tuple(moment[:2]): functools.partial(fate, *moment[2:])
            for moment, fate in ((die_at, self._die), (halt_at, wait_at), (stop_at, self._stop))
            if moment is not None
        }

    def say(self, what, **more):
        self._mouth.say(what, **more)
        self._said[what] += 1
        if fate := self._fates.get((what, self._said[what])):
            fate()

    def _die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self):
        signal.raise_signal(signal.SIGSTOP)  # to this thread: a signal to the process lets it run on for a moment


def wait_at(gate):
    """Wait until a gate is opened."""
    with open(gate) as closed:
        fcntl.flock(closed, fcntl.LOCK_SH)


def trace(owner, method, before, after, mouth):
    """Say when a method is called, and when it has done its work."""
    real = getattr(owner, method)

    def traced(*args, **options):
        mouth.say(before)
        result = real(*args, **options)
        mouth.say(after)
        return result

    setattr(owner, method, traced)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def serve(perform):
    """Take jobs until there are no more; each is performed in a process of its own."""
    preload()
    for line in sys.stdin:
        job = json.loads(line)
        if "wait" in job:
            _, status = os.waitpid(job["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            pipe = os.open(job.pop("pipe"), os.O_WRONLY)
            with warnings.catch_warnings():
                # Libraries that were imported keep threads of their own; none has been given anything to do.
                warnings.simplefilter("ignore", DeprecationWarning)
                answer = os.fork()
            if answer == 0:
                _work(perform, pipe, **job)
            os.close(pipe)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _work(perform, pipe, *, gate, **job):
    """Do one job, at the moment when the gate opens, and leave."""
    code = 1
    try:
        mouth = Mouth(pipe)
        if gate:
            mouth.say("ready")
            wait_at(gate)
        perform(mouth, **job)
        mouth.say("done")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
