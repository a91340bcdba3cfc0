"""The life of an alert: open, update, acknowledge, silence and resolve it, with one transaction for each change."""
