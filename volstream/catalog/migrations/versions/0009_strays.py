"""Adds which jobs have yet to look for rows of files that their streams no longer know."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Adds the column."""
    op.add_column("jobs", sa.Column("may_have_strays", sa.Boolean(), nullable=False, server_default=sa.false()))
