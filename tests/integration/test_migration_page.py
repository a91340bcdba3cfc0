"""Claims of the migration page that its own code blocks cannot show."""

import re
import threading
from pathlib import Path

import psycopg
import pybreaker

import redrive

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()


def test_sql_of_the_page_imports_old_rejects_as_letters(new_store):
    (statement,) = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with new_store("postgresql") as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE rejects (at date, file text, line int, id text, payload text, error text)")
        old = """('2026-02-01', 'd.csv', 7, 'D-7', '{"id": "D-7", "fee": "N/A"}', 'fee: not a number')"""
        connection.execute(f"INSERT INTO rejects VALUES {old}, {old.replace('D-7', 'D-8')}")
        connection.execute(statement)
        with redrive.connect(url) as store:
            first, second = store.dlq.each(pipeline="vendor")
            assert (first.key, first.record, first.status) == ("D-7", {"id": "D-7", "fee": "N/A"}, "pending")
            assert (first.rejected_at.date().isoformat(), second.key) == ("2026-02-01", "D-8")
            assert [cause.count for cause in store.dlq.causes()] == [2]
            assert store.dlq.replay(lambda records: None, pipeline="vendor", dry_run=False).reprocessed == 2


def test_pybreaker_serializes_threads_and_redrive_does_not():
    def two_at_once(call, *, patience):
        """Whether a second thread comes into the call while the first one is in it."""
        met = threading.Barrier(2)

        def inside():
            try:
                met.wait(patience)
            except threading.BrokenBarrierError:
                return False
            return True

        found = []
        threads = [threading.Thread(target=lambda: found.append(call(inside))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return all(found)

    assert not two_at_once(pybreaker.CircuitBreaker().call, patience=0.5)
    assert two_at_once(redrive.Service("carrier").call, patience=60)
