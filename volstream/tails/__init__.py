"""Tails of tables: rows that have arrived, are safe and can be queried, but are not committed to their table yet."""
