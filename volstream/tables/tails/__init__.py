"""Tails of tables: rows that have arrived, are durable and can be queried, but are not yet committed to their table."""
