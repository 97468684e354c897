"""Delta Lake: what a table's log says (without a JVM), and the only commands that write tables."""
