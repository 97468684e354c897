"""Proof: up to which version a job's table was verified, where streams began, what is expected of rows and of arrivals."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import UtcDateTime

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Adds the columns; NULL: from the beginning, never verified."""
    op.add_column("streams", sa.Column("began_after", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("verified_version", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("verified_on", UtcDateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("verify_every", sa.Float(), nullable=True))
    op.add_column("volumes", sa.Column("expect_every", sa.Float(), nullable=True))
    for name in ("expect", "expect_warn"):
        op.add_column("jobs", sa.Column(name, sa.JSON(), nullable=True))
