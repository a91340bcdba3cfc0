"""Where letters, runs and claims are kept: one contract, small dialects."""
