"""Streams know the columns that identify rows by what stays when these are renamed."""

import sqlalchemy as sa
from alembic import op

revision = "0107"
down_revision = "0106"


def upgrade() -> None:
    """Streams that were there know the names alone."""
    op.add_column("streams", sa.Column("identity_ids", sa.JSON))
