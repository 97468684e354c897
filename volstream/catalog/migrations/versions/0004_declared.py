"""Adds whether a job's columns are those that its function declares. Unknown for existing jobs, which are not held to it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the column."""
    op.add_column("jobs", sa.Column("declared", sa.Boolean(), nullable=False, server_default=sa.false()))
