"""Processes that run pipelines until a test kills them, and their input files.

A process says where it is, a line for each step, and may be told to kill itself at one of them.
"""

import contextlib
import functools
import json
import os
import time
from datetime import timedelta

import dataframely
import duckdb  # noqa: F401 - imported here, so that no process has to
import psycopg  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pydantic
from sqlalchemy import Engine, event

import redrive
from redrive.model.runs import RunStarted
from redrive.rows import pipeline as pipelines
from redrive.rows.checkpoint import PipelineRunHandle
from tests.support.killable import Doomed, serve, trace

PIPELINE = "vendor"
COUNT = 4_000 if os.environ.get("REDRIVE_TEST_LOOP") == "chaos" else 1_600
BATCH = 100
COLUMNS = ("id", "fee", "weight", "city")

for _lazy in ("csv", "ndjson", "parquet_dataset", "records", "table"):
    getattr(redrive.rows, _lazy)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def key_of(n):
    """The key of a row. One in a batch has that of the row before it, one that of a row of the batch before."""
    if n % 100 == 61:
        n -= 1
    if n % 100 == 40 and n > 100:
        n -= 99
    return f"D-{n:05}"


def record(n):
    """Row number n, as the vendor wrote it; None where that is no row."""
    if n % 400 == 255:
        return None
    fee = "N/A" if n % 100 in {17, 50, 83} else f"{n % 90}.25"
    weight = "-5" if n % 200 == 120 else f"{n % 70}"  # no table takes it
    city = None if n % 400 == 325 else "nowhere" if n % 500 == 77 else f"Pune {n % 11}"  # nor a row without a city
    return {"id": key_of(n), "fee": fee, "weight": weight, "city": city}


def csv_line(n):
    found = record(n)
    text = f"D-{n:05},1,2,Pune,and more" if found is None else ",".join(value or "" for value in found.values())
    return text.encode() + b"\n"


def json_line(n):
    found = record(n)
    return (b'{"id": "D-%05d", "fee"' % n if found is None else json.dumps(found).encode()) + b"\n"


def no_row(n):
    return f"row {n} is lost"


def write_csv(path):
    path.write_bytes(b"id,fee,weight,city\n" + b"".join(map(csv_line, range(COUNT))))


def write_json(path):
    path.write_bytes(b"".join(map(json_line, range(COUNT))))


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Deliveries(dataframely.Schema):
    id = dataframely.String()
    fee = dataframely.Float64()
    weight = dataframely.Int64()
    city = dataframely.String(nullable=True)


class Delivery(pydantic.BaseModel):
    id: str
    fee: float
    weight: int
    city: str | None


def delivery(record):
    if record["city"] == "nowhere":
        raise redrive.Discard("nobody lives there")
    return {**record, "fee": float(record["fee"]), "weight": int(record["weight"])}


def somewhere(record):
    return None if record["city"] == "nowhere" else record


def marked(record):
    """Mark two rows in seven as deletions: of the rows of a key, some come behind one, and some before."""
    return {**record, "gone": record["weight"] >= 0 and record["weight"] % 7 in {2, 5}}


def a_pipeline(variant, *, file, sink, store, batch=BATCH, on_event=None):
    """One of the pipelines over the same rows: vectorised, by a model, by a function; with rules for duplicates."""
    made = {
        "csv ignore": lambda: {"source": redrive.rows.csv(file), "validate": Deliveries},
        "csv newer": lambda: made["csv"](),
        "ndjson delete": lambda: made["ndjson"]() | {"transform": marked},
        "csv append": lambda: made["csv"]() | {"gate": redrive.Gate(abort=1)},  # rows that are there are refused
        "ndjson first": lambda: made["ndjson"]() | {"on_duplicate": "first"},
        "csv": lambda: {"source": redrive.rows.csv(file), "validate": Deliveries},
        "ndjson": lambda: {"source": redrive.rows.ndjson(file), "validate": Delivery, "transform": somewhere},
        "records": lambda: {
            "source": redrive.rows.records(all_records),
            "validate": delivery,
            "on_duplicate": "quarantine",
        },
    }
    return redrive.Pipeline(PIPELINE, **made[variant](), sink=sink, store=store, batch=batch, on_event=on_event)


def all_records():
    return (no_row(n) if (found := record(n)) is None else found for n in range(COUNT))


def a_sink(url, variant):
    if url.startswith("parquet:"):
        return redrive.rows.parquet_dataset(url.removeprefix("parquet:"), key="id")
    if variant == "csv append":
        return redrive.rows.table(url, "deliveries", append=True)
    modes = {
        "csv ignore": {"on_conflict": "ignore"},
        "csv newer": {"newer": "weight"},
        "ndjson delete": {"delete_when": "gone"},
    }
    return redrive.rows.table(url, "deliveries", key="id", **modes.get(variant, {}))


# ── operations of a process ───────────────────────────────────────────────────────────────────────────────────────────


def run(mouth, *, variant, file, url, store, batch, **fates):
    """Run a pipeline, or go on with it; say where each batch is, and how it ended."""
    mouth = Doomed(mouth, **fates)
    event.listen(Engine, "commit", lambda connection: mouth.say("committing"))
    opened = redrive.connect(store)
    sink = a_sink(url, variant)
    trace(opened.database, "write", "saving", "saved", mouth)
    shared = hasattr(sink, "lives_in") and sink.lives_in(opened.database)
    step = "append" if not sink.key else "write_within" if shared else "write"
    trace(sink, step, "writing", "wrote", mouth)

    def announced(what):
        if isinstance(what, RunStarted):
            mouth.say("started")

    pipeline = a_pipeline(variant, file=file, sink=sink, store=opened, batch=batch, on_event=announced)
    try:
        report = pipeline.run()
    except redrive.RunStopped as stopped:
        mouth.say("stopped", kind=str(stopped.kind), reason=str(stopped))
    else:
        mouth.say("report", **report.document())


def wait(mouth, *, variant, file, url, store, batch):
    """Run a pipeline as soon as nobody else does. It gives up long before a claim would run out."""
    pipeline = a_pipeline(variant, file=file, sink=a_sink(url, variant), store=redrive.connect(store), batch=batch)
    for _ in range(1_000):
        try:
            mouth.say("report", **pipeline.run().document())
            return
        except redrive.RunStopped as stopped:
            mouth.say("stopped", kind=str(stopped.kind), reason=str(stopped))
            time.sleep(0.01)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(mouth, *, operation, lease=None, **arguments):
    """Do one job. Claims last for the usual time, or for `lease`."""
    if lease is not None:
        pipelines.PipelineRunHandle = functools.partial(PipelineRunHandle, lease=timedelta(seconds=lease))
    if arguments.get("stop_at"):
        # Who is stopped in the middle of a renewal keeps SQLite's lock with him, and nobody can take over.
        PipelineRunHandle.keep_claim = lambda self: contextlib.nullcontext()
    {"run": run, "wait": wait}[operation](mouth, **arguments)


if __name__ == "__main__":
    serve(perform)
