"""PostgreSQL tables as a sink, by COPY and one upsert per batch."""
