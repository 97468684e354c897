"""Delta tables: their logs, their commits, and rows that are not committed yet."""
