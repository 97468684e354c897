"""The engine of a home: the process that owns its Spark JVM, and how others find, start and end it."""
