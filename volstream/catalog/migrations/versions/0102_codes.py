"""Batches know the version of the code that they ran."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """What ran before has no version."""
    op.add_column("batches", sa.Column("code", sa.BigInteger))
    op.add_column("batches", sa.Column("carried", sa.JSON))
    op.create_table(
        "code_versions",
        sa.Column("job_id", sa.String(36), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("function", sa.Text, nullable=False),
        sa.Column("arguments", sa.JSON, nullable=False),
        sa.Column("returns", sa.Text, nullable=False),
        sa.Column("environment", sa.Text),
        sa.Column("source", sa.JSON),
        sa.Column("made_by", sa.Text, nullable=False),
        sa.Column("made_on", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("job_id", "digest"),
    )
    op.create_table(
        "forgotten_batches",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("job_id", sa.String(36), sa.ForeignKey("jobs.id"), nullable=False, index=True),
        sa.Column("code", sa.BigInteger, nullable=False),
        sa.Column("carried", sa.JSON),
    )
