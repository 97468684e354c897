"""Adds what alerts are about, the alerts that wait for delivery, and who gets those about a job."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import Said, UtcDateTime

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Adds the tables, the index and the column."""
    op.create_table(
        "alert_causes",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("since", UtcDateTime(timezone=True), nullable=False),
        sa.Column("told_on", UtcDateTime(timezone=True)),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("note", Said(), nullable=False),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("receiver", sa.String(200), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", Said()),
    )
    op.create_index("ix_alerts_receiver", "alerts", ["receiver", "attempts", "id"])
    op.add_column("jobs", sa.Column("alert", sa.JSON(none_as_null=True)))
