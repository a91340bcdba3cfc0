"""Rules: what a snapshot means, as conditions with a severity. Pure."""
