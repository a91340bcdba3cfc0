"""The settings of alerts in `redrive.toml`, read and checked."""
