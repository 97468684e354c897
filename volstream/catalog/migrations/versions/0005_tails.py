"""Adds the tables that rows arrive for one by one, so that a daemon finds what it has to commit."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "tails",
        sa.Column("name", sa.String(500), primary_key=True),
        sa.Column("location", sa.Text(), nullable=False),
    )
