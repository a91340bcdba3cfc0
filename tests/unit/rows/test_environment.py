"""Variables of the environment that are stored with a run."""

import pytest

import redrive


def test_variable_named_like_a_secret_is_masked(tmp_path, monkeypatch):
    config = tmp_path / "redrive.toml"
    config.write_text('[alerts]\nenvironment = ["DB_PASSWORD", "TEAM"]\n')
    for name, value in {"REDRIVE_CONFIG": str(config), "DB_PASSWORD": "Zq9Super", "TEAM": "billing"}.items():
        monkeypatch.setenv(name, value)

    def fail(record):
        raise PermissionError("denied")

    with redrive.connect(tmp_path / "store.db") as store:
        sink = redrive.rows.parquet_dataset(tmp_path / "orders", key="id")
        source = redrive.rows.records([{"id": 1}])
        pipeline = redrive.Pipeline("orders", source=source, transform=fail, sink=sink, key="id", store=store)
        with pytest.raises(redrive.RunStopped):
            pipeline.run()
        (alert,) = store.alerts.find()
    assert alert.facts.environment == {"DB_PASSWORD": "***", "TEAM": "billing"}
