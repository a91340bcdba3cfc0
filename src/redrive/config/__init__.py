"""`redrive.toml` and `REDRIVE_*`: one frozen `Settings`.

What is said by argument wins over the environment, that over the file, and that over the default. The file is the first
`redrive.toml` in the working directory or one of its parents, up to the home directory or the root of a git repository,
or the one that REDRIVE_CONFIG names:

    [store]
    url = "postgresql://redrive@db/prod"    # REDRIVE_STORE; a path of SQLite's is relative to this file
    migrate = false                         # REDRIVE_STORE_MIGRATE
    patience = "30s"                        # REDRIVE_STORE_PATIENCE

    [letters]
    redact = ["card_number", "*.ssn"]       # REDRIVE_LETTERS_REDACT, with commas between
    store_redacted = false                  # REDRIVE_LETTERS_STORE_REDACTED

    [retention]
    runs = "90d"                            # REDRIVE_RETENTION_RUNS; kept for ever where nothing is said
    letters = "30d"                         # REDRIVE_RETENTION_LETTERS; of those reprocessed or discarded
    files = "/mnt/share/results"            # REDRIVE_RETENTION_FILES, where `Flow(files=…)` names a directory

    [alerts]                                # REDRIVE_ALERTS=off for none; `redrive.alerts.config.read` has the rest
"""

from redrive.config.discovery import FILE, find
from redrive.config.located import ConfigError
from redrive.config.settings import SettingOrigin, Settings, load, origins

__all__ = ["FILE", "ConfigError", "SettingOrigin", "Settings", "find", "load", "origins"]
