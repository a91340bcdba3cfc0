"""The two databases of a store behind one small contract: SQLite and PostgreSQL."""
