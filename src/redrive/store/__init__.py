"""The store: the database of letters, runs, tasks, alerts and shared service state. One contract, two dialects."""
