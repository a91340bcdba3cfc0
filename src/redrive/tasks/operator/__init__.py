"""What an operator decides about tasks: retry, accept, skip, fail, reopen, cancel, rerun."""
