"""Dead letters: kept whole, grouped by cause, edited and driven again."""
