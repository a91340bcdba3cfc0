"""Processes that run a flow, made to be killed: see `mortals` and `tasks_flow`."""

import functools
import logging
import os
from datetime import timedelta

import psycopg  # noqa: F401 - imported here, so that no process has to
from sqlalchemy import Engine, event

import redrive
from redrive.model.tasks import FlowStarted
from redrive.tasks.executor import decide
from redrive.tasks.executor import executor as executors
from redrive.tasks.state.executor_lease import ExecutorLease
from tests.support import tasks_flow, tasks_targets
from tests.support.killable import Doomed, serve, trace

MARK = "REDRIVE_TESTS_MARK"
FLOWS = {flow.name: flow for flow in (tasks_flow.flow, tasks_targets.hunt, tasks_targets.stall)}


def run(mouth, *, flow, params, directory, store, run_id, mark, stop_within=0.2, lease=None, blame=None, **fates):
    """Run a flow, or go on with it; say what is written, and how it ended.

    Where `blame` is given, a task is not suspected of killing its executors before so many in a row have died of it.
    """
    mouth = Doomed(mouth, **fates)
    os.chdir(directory)
    logging.disable()  # what happens is in the books
    os.environ[MARK] = mark  # all that come from here have it, however far down
    if lease is not None:
        executors.ExecutorLease = functools.partial(ExecutorLease, lease=timedelta(seconds=lease))
    if blame is not None:
        decide.LOST_IN_A_ROW = blame
    event.listen(Engine, "commit", lambda connection: mouth.say("committing"))
    opened = redrive.connect(store)
    trace(opened.database, "write", "saving", "saved", mouth)
    FLOWS[flow].stop_within = stop_within
    redrive.on_event(lambda what: mouth.say("started") if isinstance(what, FlowStarted) else None)
    mouth.say("begun")
    try:
        report = FLOWS[flow].run(store=opened, run_id=run_id, params={"book": f"{directory}/book", **params})
    except redrive.FlowStopped as stopped:
        mouth.say("stopped", kind=str(stopped.kind), reason=str(stopped))
    except redrive.StoreError as error:
        mouth.say("stopped", kind=str(error.kind), reason=str(error))
    else:
        mouth.say("report", **report.document())


def perform(mouth, *, operation, **arguments):
    """Do one job."""
    {"run": run}[operation](mouth, **arguments)


if __name__ == "__main__":
    serve(perform)
