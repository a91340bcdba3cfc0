"""Alerts: conditions and rules, the life of an alert, and the delivery of messages to channels."""
