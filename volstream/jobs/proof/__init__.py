"""Whether a table is true: verified against its files, and code compared with other code."""
