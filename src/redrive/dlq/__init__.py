"""Dead letters: stored with their record, grouped by cause, edited and replayed."""
