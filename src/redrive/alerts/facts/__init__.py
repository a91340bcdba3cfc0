"""Facts that rules look at: snapshots of runs, services, tables, deadlines and letters."""
