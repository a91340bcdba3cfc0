"""The life of an alert: opened, updated, acknowledged, silenced, resolved; one transaction per step."""
