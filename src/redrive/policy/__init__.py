"""From a verdict and a history to a decision: pure rules that are handed the time and chance they need."""
