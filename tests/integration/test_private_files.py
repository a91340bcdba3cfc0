"""Files that redrive writes can be read by their user only, whatever the umask."""

import ast
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import redrive
from redrive._internal.files import open_new
from redrive.observe.log import attempt_log
from redrive.store import migrate

PROGRAM = """
import logging, os, pathlib, subprocess, sys, time
import redrive
from redrive.cli.dlq.edit import edited_by_hand
from redrive.demo.world import set_up
from redrive.observe.log import attempt_log

flow = redrive.Flow("big", workers=1)

@flow.task
def many():
    return ["x" * 1000] * 3000

@flow.task(each="many")
def use(one):
    return one

@flow.task
def live():
    print("under way", flush=True)
    ends = time.monotonic() + 60
    while not (files := list(pathlib.Path(".redrive").rglob("*.log"))) and time.monotonic() < ends:
        time.sleep(0.01)
    return {str(path): oct(path.stat().st_mode & 0o777) for path in (*files, files[0].parent)}

if __name__ == "__main__":
    os.umask(int(sys.argv[1], 8))
    with redrive.connect() as store:
        store.dlq.put({"id": 1}, ValueError("no"), pipeline="p", key="1")
        store.dlq.put({"id": 2}, ValueError("no"), pipeline="p", key="2")
        handler = attempt_log("attempts.log")
        handler.handle(logging.makeLogRecord({"msg": "x"}))
        flow.run(store=store)
        print(flow.result("live"))
        source = redrive.rows.records([{"id": 1}])
        redrive.Pipeline("p", source=source, sink=redrive.rows.parquet_dataset("out", key="id"), store=store).run()
        command = [sys.executable, "-m", "redrive.cli", "dlq", "export", "-o", "letters.ndjson"]
        subprocess.run(command, check=True)
        subprocess.run([*command[:3], "watch", "--once", "--textfile", "redrive.prom"], check=True)
        os.environ["EDITOR"] = "stat -c %n:%a"
        edited_by_hand(store.dlq.get(1))
        with set_up(pathlib.Path("demo"), rows=10):
            pass
        for name in os.listdir(".redrive"):
            print(name, oct(os.lstat(f".redrive/{name}").st_mode & 0o777))
"""


def modes(directory):
    """Every file and directory below, with its permissions."""
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode)
        for path in sorted(directory.rglob("*"))
        if path.name not in {"job.py", "__pycache__"} and path.suffix != ".pyc"
    }


def expected(path, umask):
    """The permissions that a file is to have: the user's own results and the metrics follow the umask."""
    of_the_user = "out" in path.parts or path.suffix == ".prom" or (path.parent.name == "demo" and path.suffix != ".py")
    if of_the_user and path.name != "redrive.toml":
        return (0o777 if path.is_dir() else 0o666) & ~umask
    return 0o700 if path.is_dir() else 0o600


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_files_are_private_under_umask(tmp_path, umask):
    (tmp_path / "job.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "job.py", umask], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    live, edited = (
        re.search(pattern, done.stdout, re.MULTILINE)[1] for pattern in (r"^(\{.*\})$", r"letter-1-\w+\.json:(\d+)")
    )
    assert sorted(ast.literal_eval(live).values()) == ["0o600", "0o700"]
    assert edited == "600"
    while_open = dict(line.split() for line in done.stdout.splitlines() if line.startswith("redrive.db"))
    assert while_open["redrive.db-wal"] == while_open["redrive.db"] == "0o600"
    found = modes(tmp_path)
    assert {".redrive/redrive.db", ".redrive/.gitignore", "attempts.log", "letters.ndjson"} <= found.keys()
    assert any(name.startswith(".redrive/results/") and name.endswith(".json") for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode != expected(tmp_path / name, int(umask, 8))} == {}
    assert (tmp_path / ".redrive/.gitignore").read_text() == "*\n"


class TestExistingStore:
    def old_store(self, path):
        """A store that an older version has made."""
        from alembic import command
        from alembic.config import Config

        path.parent.mkdir(exist_ok=True)
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            config = Config(
                attributes={"connection": connection.execution_options(schema_translate_map={"pipeline": None})}
            )
            config.set_main_option("script_location", migrate.SCRIPTS)
            command.upgrade(config, "0004")
        engine.dispose()
        return path

    def test_older_store_is_tightened_once_with_a_note(self, tmp_path, caplog):
        path = self.old_store(tmp_path / ".redrive" / "redrive.db")
        path.parent.chmod(0o755)
        path.chmod(0o644)
        with redrive.connect(path):
            pass
        assert modes(tmp_path)[".redrive"] == 0o700
        assert modes(tmp_path)[".redrive/redrive.db"] == 0o600
        assert "changed the permissions of" in caplog.text
        path.chmod(0o644)  # somebody means it
        with redrive.connect(path):
            pass
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_group_that_may_write_keeps_its_rights(self, tmp_path):
        path = self.old_store(tmp_path / "shared" / "store.db")
        path.parent.chmod(0o2775)
        path.chmod(0o664)
        with redrive.connect(path):
            pass
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2775  # not ours


def test_directory_of_the_user_gets_no_gitignore(tmp_path):
    with redrive.connect(tmp_path / "data" / "store.db"):
        pass
    assert not (tmp_path / "data" / ".gitignore").exists()


def test_log_that_exists_keeps_its_permissions(tmp_path):
    (tmp_path / "a.log").touch(0o640)
    (tmp_path / "a.log").chmod(0o640)
    attempt_log(tmp_path / "a.log").close()
    assert stat.S_IMODE((tmp_path / "a.log").stat().st_mode) == 0o640


class TestLogThatIsALink:
    def test_link_of_the_user_is_followed(self, tmp_path):
        (tmp_path / "a.log").symlink_to(tmp_path / "b.log")
        attempt_log(tmp_path / "a.log").close()
        assert stat.S_IMODE((tmp_path / "b.log").stat().st_mode) == 0o600

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
    def test_link_of_another_user_is_rejected(self, tmp_path):
        (tmp_path / "a.log").symlink_to(tmp_path / "b.log")
        os.lchown(tmp_path / "a.log", 65534, 65534)
        with pytest.raises(PermissionError, match="a link of another user"):
            attempt_log(tmp_path / "a.log")
        assert not (tmp_path / "b.log").exists()


def test_new_file_follows_no_link(tmp_path):
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(FileExistsError):
        os.close(open_new(tmp_path / "link"))
    assert not target.exists()
    assert Path(tmp_path / "link").is_symlink()


def test_second_process_keeps_the_log_of_an_open_store(tmp_path):
    """SQLite removes the log with the last process; a process that opens the store twice must stay counted."""
    path = tmp_path / "redrive.db"
    with redrive.connect(path) as store, redrive.connect(path) as again:
        for one in (store, again):
            one.dlq.put({"id": 1}, "bad", pipeline="vendor")
        code = f"import sqlite3; sqlite3.connect({str(path)!r}).execute('SELECT count(*) FROM runs').fetchall()"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert path.with_name("redrive.db-wal").exists()
