"""Whether a failed attempt may have had its effect: requests that were sent, answered or are still in flight."""
