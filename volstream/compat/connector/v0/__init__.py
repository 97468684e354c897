"""See ``volstream.compat.connector``."""
