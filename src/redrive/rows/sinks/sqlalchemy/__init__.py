"""Tables of any other database that SQLAlchemy supports."""
