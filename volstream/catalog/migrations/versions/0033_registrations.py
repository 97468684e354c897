"""Registrations: the tables that a home registered in a metastore."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "registrations",
        sa.Column("metastore", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(500), primary_key=True),
        sa.Column("location", sa.Text(), nullable=False),
    )
