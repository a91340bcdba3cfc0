"""The noun `dlq`, to which the files beside this one add their commands."""

from redrive.cli.command import noun

app = noun("List, show, edit, replay and resolve dead letters.", bare="causes")
