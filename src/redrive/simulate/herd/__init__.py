"""Many clients of one service that goes down and recovers, simulated in virtual time."""
