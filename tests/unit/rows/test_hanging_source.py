"""A source or a step that hangs is ended by the deadline of the run or by a stop request."""

import socket
import threading
import time

import pytest

import redrive
from redrive.rows import retries
from redrive.rows.write import thread as write_thread


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(write_thread, "GRACE", 0.2)
    monkeypatch.setattr(retries, "_CANCEL_GRACE", 0.1)


@pytest.fixture
def silent():
    """A connection on which nothing ever arrives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


class Vendor:
    """Two batches, then a wait of its own kind in the midst of a batch."""

    def __init__(self, tmp_path, wait):
        self.wait = wait
        self.hangs = True
        self.sink = f"sqlite:///{tmp_path}/sink.db"
        self.store = redrive.connect(f"sqlite:///{tmp_path}/store.db")

    def records(self):
        for number in range(45):
            if number == 25 and self.hangs:
                self.wait()
            yield {"id": number}

    def pipeline(self, **options):
        return redrive.Pipeline(
            "vendor",
            source=redrive.rows.records(self.records),
            sink=redrive.rows.table(self.sink, "t", key="id", create=True),
            batch=10,
            store=self.store,
            **options,
        )


def test_deadline_ends_a_source_that_waits_for_a_socket(tmp_path, silent):
    def wait_and_catch():
        while True:
            try:
                silent.recv(1)
            except Exception:  # a source that retries whatever comes
                continue

    vendor = Vendor(tmp_path, wait_and_catch)
    with pytest.raises(redrive.RunStopped, match=r"its deadline of 1\.5 s has passed"):
        vendor.pipeline(deadline=1.5).run()
    vendor.hangs = False
    report = vendor.pipeline().run()
    assert report.status == "complete"
    assert report.read == 45


def test_stop_ends_a_source_in_another_thread(tmp_path):
    def poll():
        begun.set()
        while True:
            time.sleep(0.01)

    begun = threading.Event()
    vendor = Vendor(tmp_path, poll)
    pipeline = vendor.pipeline()
    caught = []

    def run():
        with pytest.raises(redrive.RunStopped, match="stopped: it was asked to") as stopped:
            pipeline.run()
        caught.append(stopped.value.report.written)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    pipeline.stop()
    thread.join(60)
    assert caught == [20]


def test_deadline_ends_a_check_that_hangs(tmp_path, silent):
    def check(record):
        if record["id"] == 25:
            silent.recv(1)

    vendor = Vendor(tmp_path, lambda: None)
    with pytest.raises(redrive.RunStopped, match="its deadline"):
        vendor.pipeline(deadline=1.5, validate=check).run()
