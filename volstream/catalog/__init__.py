"""The catalog: definitions, offsets, batches, failures and leases, in SQLite or PostgreSQL, through SQLAlchemy."""

from volstream.catalog.catalog import Catalog

__all__ = ["Catalog"]
