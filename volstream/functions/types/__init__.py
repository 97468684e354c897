"""The types of columns: their names, which type holds the values of two, and how values become ones of a
type."""
