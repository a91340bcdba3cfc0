"""The event bus: every runtime publishes events here, and logs, metrics, traces and alerts subscribe."""
