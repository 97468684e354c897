"""The first release's schema, from which migrations go on. ``catalog/tables.py`` creates new catalogs in one step."""

revision = "0100"
down_revision = None


def upgrade() -> None:
    """Changes nothing: no catalog is older."""
