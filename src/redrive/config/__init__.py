"""Settings from `redrive.toml` and `REDRIVE_*`, as one frozen `Settings`. Used by `connect`, the CLI and the alerts.

An argument wins over the environment, the environment over the file, and the file over the default. The file is the
first `redrive.toml` in the working directory or one of its parents, up to the home directory or the root of a git
repository, or the one that REDRIVE_CONFIG names:

    [store]
    url = "postgresql://redrive@db/prod"    # REDRIVE_STORE; a path of SQLite's is relative to this file
    migrate = false                         # REDRIVE_STORE_MIGRATE
    patience = "30s"                        # REDRIVE_STORE_PATIENCE

    [letters]
    redact = ["card_number", "*.ssn"]       # REDRIVE_LETTERS_REDACT, separated by commas
    store_redacted = false                  # REDRIVE_LETTERS_STORE_REDACTED

    [retention]
    runs = "90d"                            # REDRIVE_RETENTION_RUNS; by default, runs are kept forever
    letters = "30d"                         # REDRIVE_RETENTION_LETTERS; of those reprocessed or discarded
    files = "/mnt/share/results"            # REDRIVE_RETENTION_FILES, where `Flow(files=…)` names a directory

    [alerts]                                # REDRIVE_ALERTS=off for none; `redrive.alerts.config.read` has the rest
"""

from redrive.config.discovery import FILE, find
from redrive.config.located import ConfigError
from redrive.config.settings import SettingOrigin, Settings, load, origins

__all__ = ["FILE", "ConfigError", "SettingOrigin", "Settings", "find", "load", "origins"]
