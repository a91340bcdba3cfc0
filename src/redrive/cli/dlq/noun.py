"""The group `dlq`, to which the other files of this package add commands."""

from redrive.cli.command import noun

app = noun("List, show, edit, replay and resolve dead letters.", bare="causes")
