"""What a policy does to a service that is contended, or that comes back: discrete events, seeded, in virtual time."""
