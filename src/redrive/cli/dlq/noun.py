"""The noun `dlq`, to which the files beside this one add their commands."""

from redrive.cli.command import noun

app = noun("Dead letters: what was rejected, why, and what becomes of it.", bare="causes")
