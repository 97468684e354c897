"""The text of SQL statements: their grammar, the names in them, and what is written in another form. Pure."""
