"""The two databases of a store: one small contract, SQLite and PostgreSQL."""
