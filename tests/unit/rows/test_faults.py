"""The reason of a failed run, as it is stored and shown."""

import pytest

import redrive
from redrive import rows
from redrive.errors import RunStopped


class TestFailureReason:
    @pytest.fixture
    def store(self, new_store):
        with new_store("sqlite") as url, redrive.connect(url) as store:
            yield store

    def failed_with(self, store, tmp_path, error):
        def records():
            yield {"id": 1}
            raise error

        sink = rows.table(f"sqlite:///{tmp_path / 'x.db'}", "t", key="id", create=True)
        with pytest.raises(RunStopped):
            redrive.Pipeline("p", source=rows.records(records), sink=sink, store=store).run()
        (report,) = store.runs.find()
        return report.reason

    def test_long_text_is_cut(self, store, tmp_path):
        reason = self.failed_with(store, tmp_path, ValueError("x" * 5_000_000))
        assert "ValueError" in reason
        assert len(reason) <= 3_000

    def test_secret_at_the_cut_is_not_shown(self, store, tmp_path):
        error = ValueError("x " * 950 + "password='" + "correct horse battery staple " * 5_000 + "'")
        assert "correct" not in self.failed_with(store, tmp_path, error)
