"""Delta Lake: reading table logs without a JVM, and the only commands that write tables."""
