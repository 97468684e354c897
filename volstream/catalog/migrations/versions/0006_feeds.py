"""Adds the tables that are filled through ``session.source`` and ``session.connector``, functions of their items, and
what prevents the commit of rows that have arrived."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import Said, UtcDateTime

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds the table and the columns."""
    op.add_column("functions", sa.Column("of_items", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("tails", sa.Column("trouble", Said()))
    op.create_table(
        "feeds",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("schema_name", sa.String(200), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("primary_key", sa.Text()),
        sa.Column("retention_seconds", sa.BigInteger()),
        sa.Column("immutable", sa.Boolean(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("error_on", UtcDateTime(timezone=True)),
        sa.Column("comment", sa.Text()),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("schema_name", "name"),
    )
