"""Volumes recognize their directory: another may take its place."""

import sqlalchemy as sa
from alembic import op

revision = "0108"
down_revision = "0107"


def upgrade() -> None:
    """The next listing of each volume notes it."""
    op.add_column("volumes", sa.Column("root_id", sa.String(36)))
