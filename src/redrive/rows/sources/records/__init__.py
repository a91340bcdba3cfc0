"""Records that a program makes itself: lists, generators and frames."""
