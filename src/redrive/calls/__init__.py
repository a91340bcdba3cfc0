"""From a decision to its effect: one flow, performed by a sync and an async driver."""
