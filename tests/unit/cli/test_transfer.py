"""`redrive dlq export`, `import` and `purge`."""

import json
import os
import resource
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import redrive
from tests.support.warm_python import cold_python


def settled_long_ago(store, *ids):
    from sqlalchemy import update

    from redrive.store.schema import letters

    long_ago = datetime.now(UTC) - timedelta(days=40)
    change = update(letters).where(letters.c.id.in_(ids)).values(settled_at=long_ago, last_seen=long_ago)
    store.database.write(lambda connection: connection.execute(change))


# ── export and import ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_export_and_import_lose_nothing(run, put, store, here):
    put(3)
    store.dlq.put(b"\xff\x00", "not UTF-8", pipeline="vendor", key="D-9")
    store.dlq.edit(1, patch={"fee": 0})
    store.dlq.discard(ids=(2,), note="known")
    assert run("dlq", "export", "-o", "letters.ndjson") == (0, "", "exported 4 letters to letters.ndjson\n")
    assert run("dlq", "import", "letters.ndjson", "--store", "other.db").err == "imported 4 letters\n"
    again = run("dlq", "import", "letters.ndjson", "--store", "other.db", "--json")
    assert json.loads(again.out) == {"new": 0, "known": 4, "differing": 0, "masked_elsewhere": 0}
    assert again.err == "imported 0 letters; 4 letters already in the store\n"
    with redrive.connect("other.db") as other:
        got = {letter.key: letter for letter in other.dlq.each()}
    assert got["D-9"].record == b"\xff\x00"
    assert got["D-1"].edited_record == {"id": "D-1", "fee": 0}
    assert got["D-2"].note == "known"


def test_export_without_a_file_writes_only_lines_to_stdout(run, put):
    put(2)
    answer = run("dlq", "export", "--json")
    assert [json.loads(line)["source_key"] for line in answer.out.splitlines()] == ["D-1", "D-2"]
    assert answer.err == ""


def test_export_accepts_filters_and_ids(run, put):
    put(3)
    assert len(run("dlq", "export", 1, 3).out.splitlines()) == 2
    assert len(run("dlq", "export", "--key", "D-2").out.splitlines()) == 1
    assert run("dlq", "export", "--status", "discarded").out == ""


def test_import_reads_stdin(run, put):
    put(2)
    lines = run("dlq", "export").out
    assert run("dlq", "import", "-", "--store", "other.db", input=lines).err == "imported 2 letters\n"


def test_failed_export_leaves_no_file(run, put, here, monkeypatch):
    put(2)
    before = '{"format": 1, "pipeline_name": "before"}'
    (here / "letters.ndjson").write_text(before)

    def breaks(self, **_):
        yield "{}"
        raise OSError(28, "No space left on device", "letters.ndjson")

    monkeypatch.setattr("redrive.dlq.queue.DeadLetters.export", breaks)
    answer = run("dlq", "export", "-o", "letters.ndjson")
    assert answer.code == 70
    assert answer.sentence.startswith("cannot write letters.ndjson: no space left on device. No file was written")
    assert (here / "letters.ndjson").read_text() == before
    assert [path.name for path in here.iterdir() if path.name.endswith(".part")] == []


class TestNameOfAnExport:
    @pytest.mark.parametrize("name", ["", ".", "/", ".."])
    def test_directory_is_a_wrong_use(self, run, put, name):
        answer = run("dlq", "export", "-o", name)
        assert answer.code == 64
        assert f"{name!r} is a directory; name a file. Nothing was written" in answer.err

    def test_link_stays_and_its_target_is_written(self, run, put, here):
        put(4)
        for target in ("old", "new"):
            Path("link").unlink(missing_ok=True)
            Path("link").symlink_to(Path("kept") / target)
            Path("kept").mkdir(exist_ok=True)
            if target == "old":
                Path("kept/old").touch()
            assert run("dlq", "export", "-o", "link").code == 0
            assert Path("link").is_symlink()
            assert len(Path("kept", target).read_text().splitlines()) == 4
        assert sorted(path.name for path in Path("kept").iterdir()) == ["new", "old"]

    def test_another_file_is_overwritten_with_force_only(self, run, put, here):
        put(2)
        Path("orders.csv").write_text("id\n1\n")
        answer = run("dlq", "export", "-o", "orders.csv")
        assert answer.code == 64
        assert "orders.csv exists and is not an export of letters; name another file, or pass --force" in answer.err
        assert Path("orders.csv").read_text() == "id\n1\n"
        assert run("dlq", "export", "-o", "orders.csv", "--force").code == 0
        assert run("dlq", "export", 1, "-o", "orders.csv").code == 0
        assert len(Path("orders.csv").read_text().splitlines()) == 1
        Path("empty").touch()
        assert run("dlq", "export", "-o", "empty").code == 0


def test_export_is_readable_by_its_user_only(run, put, here):
    put(1)
    run("dlq", "export", "-o", "letters.ndjson")
    assert stat.S_IMODE((here / "letters.ndjson").stat().st_mode) == 0o600


def test_device_is_written_to_and_not_replaced(run, put):
    put(1)
    assert run("dlq", "export", "-o", os.devnull).code == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.process
class TestFullDisk:
    """A limit of the size of files is a full disk to who writes one."""

    @pytest.fixture
    def full(self, here):
        def full(*words, limit):
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            # A warm process would not have the limit.
            return subprocess.run(
                cold_python("-m", "redrive.cli", *words),
                preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, hard)),
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )

        return full

    def test_failed_export_names_a_fix_and_leaves_the_file(self, full, put, here):
        put(1_000)
        (here / "out.ndjson").write_text("before")
        ended = full("dlq", "export", "-o", "out.ndjson", "--force", limit=100_000)  # SQLite itself writes 32 KB
        assert ended.stderr == (
            "redrive: cannot write out.ndjson: file too large. No file was written, and an existing one is "
            "unchanged. Free space or write to another place, and run the command again\n"
        )
        assert (ended.returncode, ended.stdout) == (70, "")
        assert sorted(os.listdir(here)) == [".redrive", "out.ndjson"]
        assert (here / "out.ndjson").read_text() == "before"

    @pytest.mark.parametrize("kind", ["png", "svg"])
    def test_failed_image_names_a_fix(self, full, here, kind):
        ended = full("simulate", "contention", "--clients", "2", "--plot", f"out.{kind}", limit=2_000)
        assert ended.stderr.startswith(f"redrive: cannot write out.{kind}: file too large. No file was written")
        assert ended.returncode == 70
        assert not (here / f"out.{kind}").exists()

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has this device")
    @pytest.mark.parametrize("words", [("observe", "grafana"), ("dlq", "export"), ("dlq", "ls", "--json"), ("--help",)])
    def test_failed_output_names_a_fix(self, spawn, put, words):
        put(1)
        with open("/dev/full", "w") as device:
            ended = spawn(*words, capture_output=False, stdout=device, stderr=subprocess.PIPE)
        assert ended.stderr == (
            "redrive: cannot write the output: no space left on device. Free space or write to another place, "
            "and run the command again\n"
        )
        assert ended.returncode == 70


def test_unwritable_or_unreadable_file_is_reported(run, put):
    put(1)
    answer = run("dlq", "export", "-o", "nowhere/letters.ndjson")
    assert (answer.code, answer.sentence) == (64, "cannot write nowhere/letters.ndjson: No such file or directory")
    answer = run("dlq", "import", "nowhere.ndjson")
    assert (answer.code, answer.sentence) == (64, "cannot read nowhere.ndjson: No such file or directory")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: lines[2][:40], "line 3 is cut short, or is not JSON; 2 letters were imported before it"),
        (lambda lines: '{"some": "thing"}', "line 3 is not a letter that redrive exported"),
        (lambda lines: "\udcff", "line 3 is cut short, or is not JSON"),
    ],
)
def test_damaged_line_is_located_and_lines_before_are_imported(run, put, here, damage, words):
    put(3)
    lines = run("dlq", "export").out.splitlines()
    text = "\n".join([*lines[:2], damage(lines)])
    (here / "cut.ndjson").write_bytes(text.encode(errors="surrogateescape"))
    answer = run("dlq", "import", "cut.ndjson", "--store", "other.db")
    assert answer.code == 64
    assert answer.sentence.startswith(words)
    assert "importing the whole file again is safe" in answer.sentence
    assert len(run("dlq", "ls", "--store", "other.db").rows) == 2


def test_progress_is_shown_on_a_terminal_only(terminal, put):
    put(3)
    assert "exported 3 letters" in terminal("dlq", "export", "-o", "x.ndjson").out
    assert "imported 0 letters; 3 letters already in the store" in terminal("dlq", "import", "x.ndjson").out


# ── purge ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_purge_removes_only_letters_closed_long_ago(run, put, store):
    put(4)
    store.dlq.discard(ids=(1, 2), note="known")
    store.dlq.escalate(ids=(3,), note="look")
    settled_long_ago(store, 1, 3)
    would = run("dlq", "purge", "--dry-run", "--json")
    assert json.loads(would.out) == {"letters": 1, "dry_run": True}
    assert would.err == "would remove 1 letter. Nothing was changed\n"
    assert run("dlq", "purge").err == "removed 1 letter\n"
    assert [row[0] for row in run("dlq", "ls", "--all-statuses").rows] == ["4", "3", "2"]
    assert run("dlq", "purge", "--older-than", "0s", "--pipeline", "other").err == "removed 0 letters\n"
    assert run("dlq", "purge", "--older-than", "0s").err == "removed 1 letter\n"


def test_purge_of_open_letters_is_rejected(run, put):
    put(1)
    answer = run("dlq", "purge", "--status", "pending")
    assert answer.code == 64
    assert answer.sentence.startswith("a letter that is pending is open and is never purged")


def test_purge_needs_a_valid_age(run, store):
    answer = run("dlq", "purge", "--older-than", "long")
    assert (answer.code, answer.sentence[:25]) == (64, "older_than must be an age")


def test_purge_asks_for_confirmation_on_a_terminal(terminal, put, store):
    put(2)
    store.dlq.discard(ids=(1, 2), note="known")
    settled_long_ago(store, 1, 2)
    no = terminal("dlq", "purge", keys="n\n")
    assert "Remove 2 letters for good? [y/N]" in no.out
    assert no.code == 64
    assert "removed 2 letters" in terminal("dlq", "purge", "--yes").out


def test_import_reports_conflicts_and_leaves_stored_letters(run, put, store):
    put(3)
    run("dlq", "export", "-o", "letters.ndjson")
    store.dlq.discard(note="x", ids=[2])
    answer = run("dlq", "import", "letters.ndjson")
    assert answer.err == (
        "imported 0 letters; 3 letters already in the store, 1 of them with another status or record, "
        "which the store keeps\n"
    )
    assert store.dlq.get(2).status == "discarded"
    told = json.loads(run("dlq", "import", "letters.ndjson", "--json").out)
    assert told == {"new": 0, "known": 3, "differing": 1, "masked_elsewhere": 0}


class TestExportToStorePath:
    @pytest.mark.parametrize("end", ["", "-wal"])
    def test_is_rejected(self, run, store, end):
        path = f"{store.database.name.removeprefix('sqlite:///')}{end}"
        answer = run("dlq", "export", "-o", path)
        assert answer.code == 64
        assert "is a file of the open store" in answer.err
