"""A user's program in which everything fails, and every error is full of secrets. Run by `test_no_secrets`.

The environment says where things are; the secrets are those of `planted`.
"""

import logging
import os
import sys

import httpx

import redrive
from redrive.observe.log import JsonFormatter, attempt_log
from tests.support import planted_secrets as planted

ONCE = redrive.Retry(attempts=1)
TWICE = redrive.Retry(attempts=2, base=0.001, cap=0.001, rate_limit_wait=0)
PARTNER = os.environ["LEAKY_PARTNER"]
WAREHOUSE = os.environ["LEAKY_WAREHOUSE"]
NOWHERE = "postgresql://etl:{}@127.0.0.1:1/lake?connect_timeout=1"
REFUSED = os.environ["LEAKY_REFUSED"]  # a server that is there, and knows no such password


class Everything(logging.Formatter):
    """A record with all that is attached to it, as a handler that sends it elsewhere would see it."""

    def format(self, record):
        """Its text, its traceback, and what was passed as extra."""
        return f"{super().format(record)} {vars(record)!r}"


def log_everything(directory):
    """Everything that anybody logs, as text and as JSON; what other libraries log by themselves is kept apart."""
    root = logging.getLogger()
    root.setLevel(logging.DEBUG)
    plain = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    files = (("log.txt", plain), ("log.json", JsonFormatter()), ("records.txt", Everything()), ("theirs.txt", plain))
    for name, formatter in files:
        handler = logging.FileHandler(os.path.join(directory, name))
        handler.setFormatter(formatter)
        handler.addFilter(lambda record, ours=name != "theirs.txt": record.name.startswith("redrive") == ours)
        root.addHandler(handler)
    logging.getLogger("redrive.attempts").addHandler(attempt_log(os.path.join(directory, "attempts.json")))


if "LEAKY_LOGS" in os.environ and not any(type(one) is logging.FileHandler for one in logging.getLogger().handlers):
    log_everything(os.environ["LEAKY_LOGS"])


def bad(place, kind=ValueError):
    """An error that says too much, in its text, in its note, and in what caused it."""
    error = kind(planted.text(place))
    error.add_note(planted.text(f"{place} note"))
    error.__cause__ = LookupError(planted.text(f"{place} cause"))
    return error


# ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────────

store = redrive.connect()
partner = redrive.Service(
    "partner",
    retry=TWICE,
    credentials=redrive.KeyPool([planted.key("first key"), planted.key("second key")], resets=3600),
    store=store,
)
bank = redrive.Service("bank", retry=TWICE, credentials=redrive.Token(lambda: planted.key("token")), store=store)
locked = redrive.Service("locked", retry=ONCE, credentials=redrive.Token(lambda: (_ for _ in ()).throw(bad("fetch"))))
by_query = httpx.Client(base_url=PARTNER, transport=partner.httpx_transport(apply="query:api_key"))
by_bearer = httpx.Client(base_url=PARTNER, transport=bank.httpx_transport())


def fetch(page):
    """A page of an API that refuses the key, and says which."""
    return by_query.get("/refused", params={"page": page, "token": planted.key("a parameter")}).raise_for_status()


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

table = redrive.rows.table(WAREHOUSE, "orders", key="id")


def refuse(record):
    """A check whose errors show the row."""
    if record["fee"] == "N/A":
        raise ValueError(f"{planted.text('a check')} in {record}") from bad("a check inside")
    return {**record, "fee": float(record["fee"])}


def vendor_rows():
    """One row that passes, one that the check refuses, one that the table does."""
    for number, fee in enumerate(("1.5", "N/A", "-1"), 1):
        yield {
            "id": planted.card(f"a key {number}"),
            "fee": fee,
            "ssn": planted.key("a field"),
            "remark": planted.text("a row"),
        }


def torn_rows():
    """A source that breaks."""
    yield {"id": "1", "fee": 1.5, "ssn": "", "remark": ""}
    raise bad("a source", kind=RuntimeError)


def refuse_frame(frame):
    """A transformation that breaks for every batch."""
    raise bad("a frame")


def plain(name, source, **options):
    """A pipeline into the warehouse."""
    return redrive.Pipeline(name, source=source, **{"sink": table, "store": store, **options})


vendor = plain("vendor", redrive.rows.records(vendor_rows, name="vendor"), validate=refuse, gate=redrive.Gate(abort=1))
torn = plain("torn", redrive.rows.records(torn_rows, name="torn"))
framed = plain(
    "framed",
    redrive.rows.records(vendor_rows, name="framed"),
    transform=redrive.rows.per_frame(refuse_frame),
    gate=redrive.Gate(page_least=1, abort_least=1),
)
filed = plain("filed", redrive.rows.csv("orders.csv"), gate=redrive.Gate(abort=1))
pages = plain("pages", redrive.rows.pages(partner, fetch))
nowhere = plain(
    "nowhere",
    redrive.rows.records([{"id": "1"}]),
    sink=redrive.rows.table(NOWHERE.format(planted.key("the sink")), "orders", key="id", patience=0),
)
unread = plain(
    "unread",
    redrive.rows.query(REFUSED.format(planted.key("the source")), "SELECT * FROM orders", watermark="id", key="id"),
)
copied = plain(  # its checkpoint is a card
    "copied",
    redrive.rows.query(WAREHOUSE, "SELECT * FROM orders", watermark="id", key="id"),
    sink=redrive.rows.table(WAREHOUSE, "copies", key="id", create=True),
)


def reprocess(records, dry_run=False):
    """A target of a replay that refuses them all."""
    return [bad("a replay") for _ in records]


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

flow = redrive.Flow("settlement", params=["account"], store=store, workers=1)


@flow.task
def merchants(account):
    """Secrets as results, which are the items of the next task."""
    return [{"name": planted.text("an item"), "account": account}, {"name": planted.text("an item"), "account": 2}]


@flow.task(each=merchants, retry=TWICE)
def settle(merchant, account):
    """A task that prints secrets and then fails of them."""
    sys.stdout.write(planted.text("stdout") + "\n")
    sys.stderr.write(planted.text("stderr") + "\n")
    raise bad("a task")


@flow.task(retry=TWICE, service=bank)
def balance(account):
    """A task whose credential is refused."""
    return by_bearer.get("/refused", params={"token": account}).raise_for_status().text


@flow.task(retry=TWICE)
def rates():
    """A task whose retries are spent."""
    raise bad("an outage", kind=ConnectionResetError)


@flow.task(after=settle)
def report(settle):
    """What is held."""
    return settle


@flow.task
def literal():
    """A line of code that has the secret in it, as tracebacks show it: key('a line of code')."""
    raise redrive.Permanent("zebraalineofcode postgresql://etl:WMAQX5IDUCFTWTLSWOR2HEUIOADD6V6N@db.example/lake")


# ── events and output of a program ────────────────────────────────────────────────────────────────────────────────────


def lag():
    """A probe that fails."""
    raise bad("a probe")


def talkative_hook(event):
    """A hook of the user's that fails."""
    raise bad("a hook")


def tell(section, *texts):
    """What the program shows, by section."""
    sys.stdout.write("\n".join([f"=== {section}", *texts, ""]))


def told(name, act):
    """Do it; what is said about how it ended."""
    try:
        tell("results", f"{name}: {act()!s}")
    except redrive.RedriveError as error:
        report = getattr(error, "report", None)
        tell("errors", f"{name}: {type(error).__name__}: {error}")
        tell("results", "" if report is None else in_every_form(report))
    except Exception as error:  # the user's own: only what redrive has added to it
        added = [note for note in getattr(error, "__notes__", ()) if "redrive" in note]
        tell("notes", f"{name}:", *added, str(getattr(error, "redrive", "")))
    except BaseException as error:
        tell("errors", f"{name}: {type(error).__name__}")


def main():
    """Everything that can be called goes wrong once."""
    heard = []
    end_hearing, end_failing = redrive.on_event(heard.append), redrive.on_event(talkative_hook)
    spans = trace_everything()
    for path in ("/broken", "/refused", "/invalid", "/limited"):
        call_services(path)
    told("fetch", lambda: locked.call(lambda credential: credential))
    told("call", lambda: redrive.Service("plain", retry=TWICE, store=store).call(_raise, bad("a call")))
    told("outage", lambda: redrive.Service("out", retry=TWICE, store=store).call(_raise, bad("a call", TimeoutError)))
    for pipeline in (vendor, torn, framed, filed, pages, nowhere, unread, copied):
        told(pipeline.name, lambda pipeline=pipeline: in_every_form(pipeline.run()))
    told("flow", lambda: flow.run(params={"account": planted.text("a parameter of a flow")}))
    call_services("/used-up")
    call_services("/used-up")
    told("replay", lambda: store.dlq.replay(reprocess, pipeline="vendor", dry_run=False))
    told("a store", lambda: redrive.connect(NOWHERE.format(planted.key("another store")), patience=0).dlq.size())
    told("a store's URL", lambda: redrive.connect(f"mysql://etl:{planted.key('another store')}@db/lake"))
    told("a table's URL", lambda: redrive.rows.table(f"nosql://etl:{planted.key('the sink')}@db/lake", "t", key="id"))
    by_hand()
    end_failing()
    end_hearing()
    tell("events", *map(repr, heard))
    tell(
        "objects", *map(repr, (store, partner, bank, vendor, table, nowhere.sink, unread.source, flow, partner.stats()))
    )
    tell("spans", *spans())
    tell("metrics", *scraped())
    store.close()


def call_services(path):
    """Call both; what comes back is shown by the story that redrive tells of it, or by its error."""

    def told_of(response):
        return getattr(response, "redrive", None)

    told(f"query {path}", lambda: told_of(by_query.get(path, params={"token": planted.key("a parameter")})))
    told(f"bearer {path}", lambda: told_of(by_bearer.get(path)))


def in_every_form(report):
    """A report as text, as JSON, and as Python shows it."""
    return f"{report}\n{report.json()}\n{report!r}"


def _raise(error):
    raise error


def by_hand():
    """Letters that an operator stored and decided."""
    for key in (planted.card("the key of a letter"), planted.line("the key of a letter")):
        store.dlq.put(
            {"ssn": planted.key("a field"), "remark": planted.text("a record")},
            bad("a letter"),
            pipeline="by hand",
            key=key,
            position=planted.line("a position"),
            source=planted.line("the name of a source"),
        )
    store.dlq.put(planted.text("bytes").encode(), planted.text("a letter"), pipeline="by hand", key="bytes")
    store.dlq.put(planted.text("a text"), planted.text("a letter"), pipeline="by hand", key="text")
    first, second, third, _ = [letter.id for letter in store.dlq.find(pipeline="by hand", newest_first=False)]
    store.dlq.edit(first, patch={"remark": planted.text("an edit")}, note=planted.text("a note of an edit"))
    store.dlq.discard(ids=[second], note=planted.text("a note"))
    store.dlq.escalate(ids=[third], note=planted.text("a note"))


def scraped():
    """The metrics for Prometheus over HTTP and in a file."""
    from redrive.observe import prometheus

    with prometheus.serve(store, "127.0.0.1:0") as server:
        for path in ("metrics", "healthz", planted.key("a path")):
            yield httpx.get(f"{server.url}/{path}").text
    prometheus.write_textfile(store, os.path.join(os.environ["LEAKY_LOGS"], "redrive.prom"))


def trace_everything():
    """Spans of all runs; how to show them."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from redrive.observe import otel

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    end = otel.instrument(tracer_provider=provider)

    def shown():
        end()
        return [span.to_json() for span in spans.get_finished_spans()]

    return shown


if __name__ == "__main__":
    main()
