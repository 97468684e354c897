"""What programs and SQL call: sessions, the DB-API, objects, statements, pipelines."""
