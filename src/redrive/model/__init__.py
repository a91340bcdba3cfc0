"""Frozen values that all packages share: verdicts and attempts, runs, tasks, letters and alerts."""
