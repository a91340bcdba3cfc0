"""Messages on their way: batched, rendered, queued in the store, and sent to channels."""
