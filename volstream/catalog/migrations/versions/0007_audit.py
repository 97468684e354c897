"""Adds the table of what was done from the console, and an index by which a job's batches are shown page by page."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import Said, UtcDateTime

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Adds the table and the indexes."""
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("object", Said(), nullable=False),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("began_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("ended_on", UtcDateTime(timezone=True)),
        sa.Column("result", Said()),
    )
    op.create_index("ix_audit_began", "audit", ["began_on"])
    op.create_index("ix_batches_job_created", "batches", ["job_id", "created_on", "number", "id"])
