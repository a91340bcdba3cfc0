"""Facts that the rules evaluate: snapshots of runs, services, tables, deadlines and letters."""
