"""What happened: how attempts and events are shown to programs."""
