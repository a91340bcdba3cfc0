"""Logs, metrics, traces and dashboards of attempts, events and stores, for other programs to read."""
