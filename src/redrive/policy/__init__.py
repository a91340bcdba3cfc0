"""Pure rules for retries, backoff, circuit breakers, budgets, keys and tokens; time and randomness are passed in."""
