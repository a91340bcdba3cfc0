"""What several packages need and no user imports: clock, masking, shutdown, private files, optional imports."""
