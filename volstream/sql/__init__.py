"""The text of SQL statements: their grammar, the names in them, and rewriting. Pure."""
