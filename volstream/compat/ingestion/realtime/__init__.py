"""See ``volstream.compat.ingestion``."""
