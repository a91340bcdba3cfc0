"""The connection breaks after PostgreSQL committed and before its reply: the store retries, and nothing is doubled."""

import asyncio
import contextlib
import gc
import select
import socket
import threading
import uuid
from datetime import UTC, datetime

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

import redrive
from redrive.calls.metrics import publisher
from redrive.dlq import retention

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"  # as the client sends it

# SQLAlchemy does not close the cursor of a connection that broke, and the driver complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def collected():
    """Collect a broken cursor here, where its warning is ignored."""
    yield
    gc.collect()


class Censor:
    """Stands between the store and its server; keeps the answer to a COMMIT back, and breaks the connection."""

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._left, self._request = None, COMMIT
        self.struck = False
        self._clients = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def strike(self, *, after, request=COMMIT):
        """Withhold the answer to a request, when so many more have passed."""
        self._left, self.struck, self._request = after, False, request

    def close(self):
        for end in (self._listener, *self._clients):
            with contextlib.suppress(OSError):  # the client has closed it
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()

    def _accept(self):
        carrying = []
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                carrying.append(threading.Thread(target=self._carry, args=(client,)))
                carrying[-1].start()
        for thread in carrying:
            thread.join()

    def _carry(self, client):
        is_lost, answered = False, False
        with client, socket.create_connection(("127.0.0.1", self._server)) as server, contextlib.suppress(OSError):
            # What is sent in a pipeline has its answer once the client has sent the end, or only if it waits for it.
            while ends := select.select([client, server], [], [], 0.5 if is_lost else None)[0]:
                for end in ends:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is client or not is_lost:
                        (server if end is client else client).sendall(data)
                    else:
                        answered = b"Z\0\0\0\x05" in data
                    if end is client and self._request in data and self._is_the_one():
                        is_lost = self.struck = True
                if answered:
                    return

    def _is_the_one(self):
        if self._left is None:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self._left = None
        return True


class Payments:
    """A table of a team's own, behind the censor; payments are counted past it."""

    def __init__(self, url, censor):
        self.censor, self._url = censor, make_url(url)
        self.run("CREATE TABLE payments (id int)")

    def run(self, query):
        with psycopg.connect(self.dsn(self._url), autocommit=True) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else None

    @property
    def count(self):
        return self.run("SELECT count(*) FROM payments")[0][0]

    def url(self, driver="postgresql"):
        there = self._url.set(port=self.censor.port, drivername=driver)
        return there.render_as_string(hide_password=False)

    @staticmethod
    def dsn(url):
        return url.set(drivername="postgresql").render_as_string(hide_password=False)


PAY = "INSERT INTO payments VALUES (1)"


def by_psycopg(payments):
    with psycopg.connect(payments.url()) as connection:
        connection.execute(PAY)


def by_psycopg_block(payments):
    with psycopg.connect(payments.url(), autocommit=True) as connection, connection.transaction():
        connection.execute(PAY)


def by_own_commit(payments):
    with contextlib.closing(psycopg.connect(payments.url())) as connection:
        connection.execute(PAY)
        connection.execute("COMMIT")


def by_async_psycopg(payments):
    async def pay():
        async with await psycopg.AsyncConnection.connect(payments.url()) as connection:
            await connection.execute(PAY)

    asyncio.run(pay())


def by_asyncpg(payments):
    async def pay():
        connection = await asyncpg.connect(payments.url(), ssl=False)
        try:
            async with connection.transaction():
                await connection.execute(PAY)
        finally:
            connection.terminate()

    asyncio.run(pay())


def by_sqlalchemy(driver):
    def pay(payments):
        engine = sa.create_engine(payments.url(f"postgresql+{driver}"))
        try:
            with engine.begin() as connection:
                connection.execute(sa.text(PAY))
        finally:
            engine.dispose()

    return pay


def by_own_error(payments):
    try:
        by_psycopg(payments)
    except psycopg.Error as error:
        raise redrive.Transient("the bank's database is away") from error


def by_pipeline(payments):
    with psycopg.connect(payments.url(), autocommit=True) as connection, connection.pipeline():
        connection.execute(PAY)


def by_pipeline_transaction(payments):
    with (
        psycopg.connect(payments.url(), autocommit=True) as connection,
        connection.pipeline(),
        connection.transaction(),
    ):
        connection.execute(PAY)


def by_pipeline_sync(payments):
    with psycopg.connect(payments.url(), autocommit=True) as connection, connection.pipeline() as pipeline:
        connection.execute(PAY)
        pipeline.sync()


def by_pipeline_fetch(payments):
    with psycopg.connect(payments.url(), autocommit=True) as connection, connection.pipeline():
        connection.execute(f"{PAY} RETURNING id").fetchone()


def by_pipeline_many(payments):
    with psycopg.connect(payments.url(), autocommit=True) as connection, connection.pipeline():
        connection.cursor().executemany("INSERT INTO payments VALUES (1) RETURNING %s", [("a",)])


def by_pipeline_read(payments):
    with psycopg.connect(payments.url(), autocommit=True) as connection, connection.pipeline() as pipeline:
        connection.execute(PAY)
        with contextlib.suppress(psycopg.Error):
            pipeline.sync()
        connection.execute("SELECT 1")


def by_async_pipeline(payments):
    async def pay():
        async with (
            await psycopg.AsyncConnection.connect(payments.url(), autocommit=True) as connection,
            connection.pipeline(),
        ):
            await connection.execute(PAY)

    asyncio.run(pay())


PIPELINES = {
    "end": by_pipeline,
    "transaction block": by_pipeline_transaction,
    "sync": by_pipeline_sync,
    "fetch": by_pipeline_fetch,
    "executemany": by_pipeline_many,
    "read after the loss": by_pipeline_read,
    "async": by_async_pipeline,
}
ERRORS = (psycopg.OperationalError, asyncpg.PostgresError, sa.exc.DBAPIError)
COMMITS = {
    "psycopg": by_psycopg,
    "transaction block of psycopg": by_psycopg_block,
    "COMMIT as a statement": by_own_commit,
    "async psycopg": by_async_psycopg,
    "asyncpg": by_asyncpg,
    "SQLAlchemy, psycopg": by_sqlalchemy("psycopg"),
    "SQLAlchemy, psycopg2": by_sqlalchemy("psycopg2"),
    "error of its own": by_own_error,
}


@pytest.fixture
def payments(postgres_url):
    name = f"payments_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = make_url(postgres_url).set(database=name)
    censor = Censor(url.port)
    yield Payments(url, censor)
    censor.close()


def impatient(**options):
    return redrive.Service("bank", retry=redrive.Retry(attempts=3, base=0, cap=0), breaker=None, budget=None, **options)


class TestCalls:
    """A function called through a service writes to its own database."""

    @pytest.mark.parametrize("pay", COMMITS.values(), ids=COMMITS)
    def test_commit_is_not_retried(self, payments, pay):
        payments.censor.strike(after=0, request=b"COMMIT")
        with pytest.raises((redrive.Transient, *ERRORS)) as caught:
            impatient().call(pay, payments)
        assert payments.censor.struck
        assert "a COMMIT is not retried once it may have taken effect" in caught.value.redrive.why
        assert payments.count == 1

    @pytest.mark.parametrize("pay", COMMITS.values(), ids=COMMITS)
    def test_lost_statement_of_a_transaction_is_retried(self, payments, pay):
        if pay is by_psycopg_block:
            pytest.skip("the connection is in autocommit mode")
        payments.censor.strike(after=0, request=PAY.encode())
        impatient().call(pay, payments)
        assert payments.censor.struck
        assert payments.count == 1

    def test_commit_of_an_idempotent_service_is_retried(self, payments):
        payments.censor.strike(after=0, request=b"COMMIT")
        impatient(idempotent=True).call(by_psycopg, payments)
        assert payments.count == 2

    def test_commit_in_a_block_is_not_retried(self, payments):
        payments.censor.strike(after=0, request=b"COMMIT")

        def pay():
            for attempt in impatient().attempts():
                with attempt:
                    by_psycopg(payments)

        with pytest.raises(psycopg.OperationalError):
            pay()
        assert payments.count == 1

    async def test_commit_ended_by_a_limit_is_not_retried(self, payments):
        slow = "BEGIN PERFORM pg_sleep(30); RETURN NULL; END"
        payments.run(f"CREATE FUNCTION wait() RETURNS trigger AS $$ {slow} $$ LANGUAGE plpgsql")
        deferred = "AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED"
        payments.run(f"CREATE CONSTRAINT TRIGGER slow {deferred} FOR EACH ROW EXECUTE FUNCTION wait()")
        committing = []

        async def pay():
            connection = await psycopg.AsyncConnection.connect(payments.url())
            try:
                await connection.execute(PAY)
                committing.append(1)
                await connection.commit()
            finally:
                await connection.close()

        with pytest.raises(TimeoutError) as caught:
            await impatient(timeout=1).acall(pay)
        assert "a COMMIT is not retried" in caught.value.redrive.why
        assert len(committing) == 1

    def test_commit_rejected_by_the_database_is_retried(self, payments):
        payments.run("CREATE TABLE accounts (id int PRIMARY KEY)")
        payments.run("ALTER TABLE payments ADD FOREIGN KEY (id) REFERENCES accounts DEFERRABLE INITIALLY DEFERRED")
        calls = []

        def pay():
            calls.append(1)
            if len(calls) == 2:
                payments.run("INSERT INTO accounts VALUES (1)")
            with contextlib.closing(psycopg.connect(payments.url())) as connection:
                connection.execute(PAY)
                connection.commit()

        rules = redrive.Classifier().rule(psycopg.errors.ForeignKeyViolation, kind="transient")
        impatient(classifier=rules).call(pay)
        assert (len(calls), payments.count) == (2, 1)

    @pytest.mark.parametrize(
        "query",
        [PAY, PAY.encode(), psycopg.sql.SQL(PAY), f"/* daily */ {PAY}", f"WITH x AS (SELECT 1) {PAY}"],
        ids=["str", "bytes", "sql", "comment", "WITH"],
    )
    def test_autocommit_statement_is_not_retried(self, payments, query):
        def pay():
            with psycopg.connect(payments.url(), autocommit=True) as connection:
                connection.execute(query)

        payments.censor.strike(after=0, request=PAY.encode())
        with pytest.raises(psycopg.OperationalError) as caught:
            impatient().call(pay)
        assert "a statement in autocommit mode is not retried" in caught.value.redrive.why
        assert payments.count == 1

    def test_autocommit_copy_is_not_retried(self, payments):
        def pay():
            with (
                psycopg.connect(payments.url(), autocommit=True) as connection,
                connection.cursor() as cursor,
                cursor.copy("COPY payments FROM STDIN") as copy,
            ):
                copy.write_row([1])

        payments.censor.strike(after=0, request=b"c\0\0\0\x04")
        with pytest.raises(psycopg.OperationalError):
            impatient().call(pay)
        assert payments.count == 1

    def test_sqlalchemy_autocommit_is_not_retried(self, payments):
        engine = sa.create_engine(payments.url("postgresql+psycopg"), isolation_level="AUTOCOMMIT")

        def pay():
            with engine.connect() as connection:
                connection.execute(sa.text(PAY))

        payments.censor.strike(after=0, request=PAY.encode())
        with pytest.raises(sa.exc.OperationalError):
            impatient().call(pay)
        engine.dispose()
        assert payments.count == 1

    @pytest.mark.parametrize("pay", PIPELINES.values(), ids=PIPELINES)
    def test_pipeline_is_not_retried(self, payments, pay):
        # The server acts on the statement, and its answers are lost.
        payments.censor.strike(after=0, request=b"COMMIT" if "transaction" in pay.__name__ else PAY.encode())
        with pytest.raises(psycopg.OperationalError) as caught:
            impatient().call(pay, payments)
        assert "a pipeline of statements is not retried once it may have taken effect" in caught.value.redrive.why
        # A pipeline that could not send its end has not committed.
        assert payments.count <= 1

    def test_pipeline_that_cannot_connect_is_retried(self, payments):
        calls = []

        def pay():
            calls.append(1)
            url = payments.url() if len(calls) > 1 else "postgresql://127.0.0.1:1/none"
            with psycopg.connect(url, autocommit=True) as connection, connection.pipeline():
                connection.execute(PAY)

        impatient().call(pay)
        assert (len(calls), payments.count) == (2, 1)

    @pytest.mark.parametrize("query", ["SELECT 17", "-- rates\n(SELECT 17)", "WITH x AS (SELECT 17) SELECT * FROM x"])
    def test_autocommit_read_is_retried(self, payments, query):
        def read():
            with psycopg.connect(payments.url(), autocommit=True) as connection:
                return connection.execute(query).fetchone()[0]

        payments.censor.strike(after=0, request=b"SELECT 17")
        assert impatient().call(read) == 17
        assert payments.censor.struck

    def test_store_of_redrive_inside_a_call_retries_itself(self, censored):
        store, answers = censored
        answers.strike(after=0)
        assert impatient().call(lambda: store.dlq.put_many(letters(2), pipeline="vendor").total) == 2
        assert answers.struck


@pytest.fixture
def censored(new_store):
    with new_store("postgresql") as url:
        there = make_url(url)
        censor = Censor(there.port)
        with redrive.connect(there.set(port=censor.port).render_as_string(hide_password=False)) as store:
            yield store, censor
        censor.close()


@pytest.fixture
def censor(censored):
    store, censor = censored
    return store.dlq, censor


def letters(count):
    return (redrive.NewLetter({"id": n}, "fee: not a number", key=f"D-{n}") for n in range(count))


def test_letters_are_stored_once_and_seen_twice(censor):
    dlq, answers = censor
    answers.strike(after=0)
    assert dlq.put_many(letters(20), pipeline="vendor").total == 20
    assert answers.struck
    assert sorted(letter.key for letter in dlq.each()) == sorted(f"D-{n}" for n in range(20))
    # Whether it was committed, nobody said: the repetition counts as another sighting.
    assert {letter.seen for letter in dlq.each()} == {2}
    assert (dlq.causes()[0].count, dlq.causes()[0].seen) == (20, 40)


# A replay of two batches commits a look, then for each batch the claim and the marks, then the release.
@pytest.mark.parametrize(
    "after",
    [
        0,
        1,
        2,
        3,
        4,
        5,
    ],
)
def test_replay_sends_and_marks_each_letter_once(censor, after):
    dlq, answers = censor
    dlq.put_many(letters(20), pipeline="vendor")
    sent = []

    def target(records):
        sent.extend(record["id"] for record in records)
        return [None if record["id"] % 5 else "no" for record in records]

    answers.strike(after=after)
    report = dlq.replay(target, any_pipeline=True, dry_run=False, batch=10, lease=2)
    assert answers.struck
    assert sorted(sent) == list(range(20))
    assert (report.attempted, report.reprocessed, report.failed_again, report.held) == (20, 16, 4, 0)
    assert (dlq.count(status="reprocessed"), dlq.count(status="escalated"), dlq.count(reprocess_count=1)) == (16, 4, 20)
    assert all(len(dlq.audit(letter.id)) == 1 for letter in dlq.each())


def test_letters_are_discarded_and_logged_once(censor):
    dlq, answers = censor
    dlq.put_many(letters(20), pipeline="vendor")
    answers.strike(after=1)  # the first is that of a look
    dlq.discard(pipeline="vendor", note="too old")
    assert answers.struck
    assert dlq.count(status="discarded") == 20
    assert all(len(dlq.audit(letter.id)) == 1 for letter in dlq.each())


def test_purge_completes(censor, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 10)
    dlq, answers = censor
    dlq.put_many(letters(30), pipeline="vendor")
    dlq.discard(pipeline="vendor", note="too old")
    answers.strike(after=1)
    dlq.purge(older_than="0s")
    assert answers.struck
    assert (dlq.count(), dlq.size().letters, dlq.causes()) == (0, 0, [])


# Without a circuit or keys to share, the only commits are those of rollups.
@pytest.mark.parametrize("after", [0, 1, 2])
def test_service_statistics_are_counted_once(censored, after):
    store, answers = censored
    store.services.every = 600
    bank = redrive.Service("bank", store=store, breaker=None)
    answers.strike(after=after)
    for _ in range(4):
        for _ in range(25):
            bank.call(len, "fine")
        publisher.flush()
    assert answers.struck
    (one,) = store.services.totals()
    assert (one.calls, one.attempts, sum(one.latencies)) == (100, 100, 100)
    assert sum(minute.attempts for minute in store.services.minutes("bank", one.at)) == 100


def test_statistics_purge_keeps_the_totals(censored):
    store, answers = censored
    store.services.every = 600
    redrive.Service("bank", store=store, breaker=None).call(len, "fine")
    publisher.flush()
    before = store.services.totals()
    answers.strike(after=1)  # the first is that of a look
    store.services.purge(datetime.now(UTC))
    assert answers.struck
    assert (store.services.windows(), store.services.totals()) == ([], before)
