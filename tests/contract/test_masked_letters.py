"""Stores that mask fields (`store_redacted`): no masked value is stored, and changes of records are detected."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy

import redrive

CARD, OTHER_CARD = "4929175516380042", "4929175516380059"


@pytest.fixture
def store(store_url: str) -> Iterator[redrive.Store]:
    with redrive.connect(store_url, redact=["card"], store_redacted=True) as opened:
        yield opened


def reject(record: dict[str, Any]) -> dict[str, Any]:
    if record["fee"] == "N/A":
        raise ValueError(f"no fee for {record['card']}")
    return record


@pytest.fixture
def run(store, tmp_path):
    """Run a pipeline whose key is the masked field, and return the pipeline."""

    def run(*rows: dict[str, Any], validate: Any = reject, key: Any = "card", **options: Any) -> redrive.Pipeline:
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "payments", key=key, create=True)
        pipeline = redrive.Pipeline(
            "payments",
            source=redrive.rows.records([*rows, {"id": 9, "card": "good", "fee": "1"}]),
            validate=validate,
            sink=sink,
            **{"store": store, "gate": redrive.Gate(abort=1), **options},
        )
        pipeline.run()
        return pipeline

    return run


def row(card: str = CARD, fee: str = "N/A", number: int = 1) -> dict[str, Any]:
    return {"id": number, "card": card, "fee": fee}


def everything_stored(store: redrive.Store) -> str:
    def read(connection: sqlalchemy.Connection) -> str:
        names = sqlalchemy.inspect(connection).get_table_names(
            "pipeline" if connection.dialect.name == "postgresql" else None
        )
        schema = "pipeline." if connection.dialect.name == "postgresql" else ""
        rows = [connection.exec_driver_sql(f"SELECT * FROM {schema}{name}").all() for name in names]
        return repr(
            [
                [value.hex() if isinstance(value, bytes) else str(value).replace("-", "") for value in one]
                for part in rows
                for one in part
            ]
        )

    return store.database.read(read)


class TestMaskedValue:
    def test_is_nowhere_in_the_store(self, store, run):
        run(row(), row(OTHER_CARD, number=2))
        run(row(OTHER_CARD, number=2), row())
        stored = everything_stored(store)
        for card in (CARD, OTHER_CARD):
            assert card not in stored
            # An identity has five bytes for the number at the end of a key.
            assert f"{int(card[-12:]):010x}" not in stored

    def test_is_nowhere_in_the_store_if_put_by_hand(self, store):
        store.dlq.put(row(), f"no fee for {CARD}", key=CARD, position=f"card {CARD}", pipeline="p")
        store.dlq.put(row("7"), "no fee", key="EU|7", position="card 7, line 3", pipeline="p")
        stored = everything_stored(store)
        assert CARD not in stored
        assert "EU|7" not in stored
        assert "card 7" not in stored

    def test_is_nowhere_in_the_store_after_an_import(self, store, new_store):
        with new_store("sqlite") as url, redrive.connect(url) as complete:
            complete.dlq.put(row(), f"no fee for {CARD}", key=CARD, pipeline="p")
            lines = list(complete.dlq.export())
        assert store.dlq.import_(lines).new == 1
        assert store.dlq.import_(lines).known == 1
        assert CARD not in everything_stored(store)
        assert f"{int(CARD[-12:]):010x}" not in everything_stored(store)
        report = store.dlq.replay(lambda records: None, pipeline="p", dry_run=False)
        assert (report.reprocessed, report.failed_again) == (0, 1)

    def test_reordered_fields_are_unchanged(self, store, run):
        run(row(), key="id")
        store.dlq.discard(pipeline="payments", note="the vendor knows")
        run(dict(reversed(row().items())), key="id")
        assert [letter.seen for letter in store.dlq.each(status="any")] == [2]

    def test_key_and_position_identify_an_unmasked_letter(self, store, store_url):
        store.dlq.put(row(), "no fee", key=CARD, position=f"card {CARD}", pipeline="p")
        with redrive.connect(store_url) as other:
            other.dlq.put(row(), "no fee", key=CARD, position=f"card {CARD}", pipeline="p")
            assert len(other.dlq.history(CARD).letters) == 2
            assert other.dlq.count(position=f"card {CARD}") == 2

    def test_key_finds_its_letter(self, store, run):
        run(row())
        assert [letter.record["id"] for letter in store.dlq.find(key=CARD)] == [1]
        assert len(store.dlq.history(CARD).letters) == 1
        assert store.dlq.find(key=OTHER_CARD) == []

    def test_key_without_masked_values_is_stored_unchanged(self, store, run):
        run(row(), key="id")
        assert [letter.key for letter in store.dlq.each()] == ["1"]

    def test_digests_of_two_stores_differ(self, store, new_store):
        store.dlq.put(row(), "no fee", key=CARD, pipeline="p")
        with new_store("sqlite") as url, redrive.connect(url, redact=["card"], store_redacted=True) as other:
            other.dlq.put(row(), "no fee", key=CARD, pipeline="p")
            (here,), (there,) = store.dlq.find(), other.dlq.find()
        assert here.key.startswith("redacted:")
        assert here.key != there.key


class TestMessagesOfPostgres:
    """PostgreSQL reports values in their index form, and truncated."""

    STORY = "patient Anna Schmidt has kidney disease and takes lithium since 2019, see Dr. Braun. " * 4
    RECORD = types.MappingProxyType(
        {"id": 2, "email": "ANNA@Example.com", "ref": "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "dob": "17 May 1980"}
    )

    @pytest.fixture
    def database(self, postgres_url):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("drop table if exists person, visit")
            connection.execute("create table person (id int not null, email text, ref uuid unique, dob date unique)")
            connection.execute("create unique index on person (lower(email))")
            connection.execute("create table visit (id int, story text, ward int not null)")
            connection.execute(
                "insert into person values (%(id)s, lower(%(email)s), %(ref)s, %(dob)s)", {**self.RECORD, "id": 1}
            )
            yield connection
            connection.execute("drop table person, visit")

    @pytest.fixture
    def dlq(self, tmp_path):
        with redrive.connect(f"sqlite:///{tmp_path / 'letters.db'}", redact=["email", "ref", "dob", "story"]) as store:
            yield store.dlq

    def message(self, dlq, record, load):
        with pytest.raises(psycopg.Error) as caught:
            load()
        dlq.put(record, caught.value, pipeline="p")
        return str(caught.value), dlq.find()[0].error_message

    @pytest.mark.parametrize(
        ("field", "shown"), [("email", "anna@example.com"), ("ref", "a0eebc99-9c0b"), ("dob", "1980-05-17")]
    )
    def test_hide_the_values_of_a_key(self, database, dlq, field, shown):
        record = {**dict.fromkeys(self.RECORD), "id": 2, field: self.RECORD[field]}
        insert = "insert into person values (%(id)s, %(email)s, %(ref)s, %(dob)s)"
        said, stored = self.message(dlq, record, lambda: database.execute(insert, record))
        assert shown in said
        assert shown not in stored
        assert f"({field})" in stored.replace("lower(", "").replace("))=", ")=")

    def test_hide_the_row(self, database, dlq):
        record = {"id": 1, "story": self.STORY}
        insert = "insert into visit (id, story) values (%(id)s, %(story)s)"
        said, stored = self.message(dlq, record, lambda: database.execute(insert, record))
        assert "patient Anna" in said
        assert stored.endswith("Failing row contains (***).")

    def test_hide_the_line_of_a_copy(self, database, dlq):
        def load():
            with database.cursor().copy("copy visit (story, id) from stdin") as copy:
                copy.write(f"{self.STORY}\n")

        said, stored = self.message(dlq, {"id": 1, "story": self.STORY}, load)
        assert "patient Anna" in said
        assert 'COPY visit, line 1: "***"' in stored


class TestChange:
    def test_within_a_masked_field_is_a_new_letter(self, store, run):
        run(row(), key="id")
        store.dlq.discard(note="a test card", pipeline="payments")
        run(row(), key="id")
        assert store.dlq.count(status="open") == 0
        run(row(OTHER_CARD), key="id")
        assert store.dlq.count(status="open") == 1

    def test_of_an_open_letter_drops_its_edit(self, store):
        store.dlq.put(row(), "no fee", key="k", pipeline="p")
        (letter,) = store.dlq.find()
        store.dlq.edit(letter.id, patch={"card": "0000", "fee": "1"})
        store.dlq.put(row(), "no fee", key="k", pipeline="p")
        assert store.dlq.get(letter.id).edited
        store.dlq.put(row(OTHER_CARD), "no fee", key="k", pipeline="p")
        assert not store.dlq.get(letter.id).edited

    def test_of_a_masked_line_is_another_letter(self, store):
        for line in (f"1,{CARD},N/A", f"1,{OTHER_CARD},N/A", f"1,{CARD},N/A"):
            store.dlq.put(line, "no fee", position="line 2", pipeline="p")
        assert sorted(letter.seen for letter in store.dlq.each()) == [1, 2]


class TestReplay:
    def test_rejects_a_letter_with_a_masked_field(self, store):
        store.dlq.put({**row(), "backup": {"card": OTHER_CARD}}, "no fee", key="k", pipeline="p")
        (letter,) = store.dlq.find()
        received: list[Any] = []
        store.dlq.edit(letter.id, patch={"card": CARD})
        assert store.dlq.replay(received.extend, pipeline="p", dry_run=False).failed_again == 1
        store.dlq.edit(letter.id, patch={"card": CARD, "backup": {"card": OTHER_CARD}})
        assert store.dlq.replay(received.extend, pipeline="p", dry_run=False).reprocessed == 1
        assert received == [{**row(), "backup": {"card": OTHER_CARD}}]

    def test_omits_a_letter_whose_masked_key_was_written_since(self, store, run):
        run(row())
        pipeline = run(row(fee="2"))
        report = store.dlq.replay(pipeline, dry_run=False)
        assert (report.selected, report.superseded) == (0, 1)

    def test_omits_a_row_of_a_key_written_in_the_same_run(self, store, run):
        pipeline = run(row(), row(fee="2"))
        report = store.dlq.replay(pipeline, dry_run=False)
        assert (report.selected, report.superseded) == (0, 1)

    def test_omits_an_edited_letter_written_since(self, store, run):
        run(row())
        (letter,) = store.dlq.each()
        store.dlq.edit(letter.id, patch={"card": CARD})
        pipeline = run(row(fee="2"))
        report = store.dlq.replay(pipeline, dry_run=False)
        assert (report.selected, report.superseded, report.key_unknown) == (0, 1, 0)

    @pytest.mark.parametrize("key", ["id", "card"])
    def test_omits_a_letter_that_an_unmasked_run_overwrote(self, store, store_url, run, key):
        run(row(), key=key)
        (letter,) = store.dlq.each()
        store.dlq.edit(letter.id, patch={"card": CARD})
        with redrive.connect(store_url) as unmasked:
            pipeline = run(row(fee="2"), key=key, store=unmasked)
            report = unmasked.dlq.replay(pipeline, dry_run=False)
        assert (report.selected, report.superseded, report.key_unknown) == (0, 1, 0)


class TestImportedFromAnotherStore:
    """Its digests have another salt, so no key of this store equals one of them."""

    @pytest.fixture
    def lines(self, new_store, tmp_path):
        with new_store("sqlite") as url, redrive.connect(url, redact=["card"], store_redacted=True) as other:
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 'other.db'}", "payments", key="id", create=True)
            source = redrive.rows.records([row(), {"id": 9, "card": "good", "fee": "1"}])
            options = {"validate": reject, "gate": redrive.Gate(abort=1), "store": other}
            redrive.Pipeline("payments", source=source, sink=sink, **options).run()
            lines = list(other.dlq.export())
            other.dlq.discard(note="moved", pipeline="payments")
            other.dlq.purge(older_than="0s")
            assert other.dlq.import_(lines).masked_elsewhere == 0
            yield lines

    @pytest.mark.parametrize("masks", [True, False])
    def test_is_counted_and_reported_to_overwrite_newer_rows(self, store, store_url, run, lines, masks):
        with store if masks else redrive.connect(store_url) as here:
            done = here.dlq.import_(lines)
            assert (done.new, done.masked_elsewhere) == (1, 1)
            assert here.dlq.import_(lines).known == 1
            pipeline = run(row(fee="2"), key="id")
            (letter,) = here.dlq.find(pipeline="payments")
            here.dlq.edit(letter.id, patch={"card": CARD, "fee": "3"})
            report = here.dlq.replay(pipeline)
            assert (report.selected, report.reprocessed, report.key_unknown) == (1, 1, 1)


class TestKeyOfReplayedPage:
    @pytest.fixture
    def replayed(self, store, tmp_path):
        """Load three pages of one row, the second by a replay, and return the pipeline."""
        broken = {2}

        def fetch(page: int) -> dict[str, Any]:
            if page in broken:
                raise ValueError("the page is malformed")
            return {
                "items": [{"id": page, "card": CARD if page == 2 else f"card {page}", "fee": "1"}] if page < 4 else []
            }

        service = redrive.Service("cards", retry=redrive.Retry(attempts=1))
        pipeline = redrive.Pipeline(
            "payments",
            source=redrive.rows.pages(service, fetch, bad_page="quarantine", size=1),
            sink=redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "payments", key="card", create=True),
            store=store,
            gate=redrive.Gate(abort=1),
        )
        pipeline.run()
        broken.clear()
        assert store.dlq.replay(pipeline, dry_run=False).reprocessed == 1
        return pipeline

    def test_is_stored_as_digest(self, store, replayed):
        assert CARD not in everything_stored(store)

    def test_stays_a_digest_when_replayed_again(self, store, replayed):
        (letter,) = store.dlq.find(status="any")
        store.dlq.reopen(ids=[letter.id], note="once more")
        assert store.dlq.replay(replayed, dry_run=False).reprocessed == 1
        assert CARD not in everything_stored(store)

    def test_is_superseded_by_newer_row(self, store, run, replayed):
        run({"id": 2, "card": CARD, "fee": "2"})
        (letter,) = store.dlq.find(status="any")
        assert letter.superseded_at is not None


# ── failures outside a letter ─────────────────────────────────────────────────────────────────────────────────────────


WORD, OTHER_WORD = "blue heron 7", "grey heron 8"  # nothing that is masked without being named


class TestErrorsOfRunsAndTasks:
    def test_error_that_stops_a_run_shows_no_masked_value(self, store, tmp_path):
        def look_up(record):
            raise PermissionError(f"401 for https://cards.example/{record['card']}")

        events: list[Any] = []
        pipeline = redrive.Pipeline(
            "payments",
            source=redrive.rows.records([row(WORD)]),
            validate=look_up,
            sink=redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "payments", key="id", create=True),
            store=store,
            on_event=events.append,
        )
        with pytest.raises(redrive.RunStopped, match=r"401 for https://cards\.example/\*\*\*") as stopped:
            pipeline.run()
        report = stopped.value.report
        assert WORD not in f"{stopped.value} {report.reason} {report.detail} {events}"
        (alert,) = store.alerts.find()
        assert "***" in alert.title
        assert WORD not in everything_stored(store)

    def test_error_of_a_sink_shows_no_value_made_by_a_transform(self, store, tmp_path, monkeypatch):
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "payments", key="id", create=True)

        def refuse(_: Any, rows: Any, **__: Any) -> Any:
            raise PermissionError(f"not for {rows.records()[0]['card']}")

        monkeypatch.setattr(type(sink), "write", refuse)
        pipeline = redrive.Pipeline(
            "payments",
            source=redrive.rows.records([{"id": 1, "number": "0042"}]),
            transform=lambda record: {"id": record["id"], "card": f"{WORD}-{record['number']}"},
            sink=sink,
            store=store,
        )
        with pytest.raises(redrive.RunStopped, match=r"not for \*\*\*"):
            pipeline.run()
        assert WORD not in everything_stored(store)

    def test_error_of_a_task_shows_no_masked_value(self, store, tmp_path):
        flow = redrive.Flow("payments", store=store, files=tmp_path, params={"customer": {}}, workers=1)
        flow.task(name="cards", in_thread=True)(lambda: [{"card": OTHER_WORD, "id": 1}])
        flow.task(name="settle", each="cards", in_thread=True, retry=redrive.Retry(attempts=1))(settle)
        with pytest.raises(redrive.FlowStopped) as stopped:
            flow.run(params={"customer": {"card": WORD}})
        details = store.tasks.get("payments", "settle[0]")
        (attempt,) = details.attempts
        assert attempt.error == details.task.error == "ValueError: no fee for *** of ***"
        assert "ValueError: no fee for *** of ***" in attempt.trace
        (alert,) = store.alerts.find()
        changes = [change.cause for change in details.changes]
        shown = f"{stopped.value} {details.task} {details.attempts} {changes} {alert} {list(store.dlq.causes())}"
        assert WORD not in shown
        assert OTHER_WORD not in shown


def settle(cards: dict[str, Any], customer: dict[str, Any]) -> None:
    raise ValueError(f"no fee for {cards.pop('card')} of {customer['card']}")
