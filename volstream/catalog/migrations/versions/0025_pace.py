"""Jobs have a rate and a number of workers, and sum up the counts of their functions."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Adds the columns; NULL: no limit, no counts."""
    op.add_column("jobs", sa.Column("rate", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("parallel", sa.BigInteger(), nullable=True))
    op.add_column("batches", sa.Column("counted", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("batches", sa.Column("files_per_call", sa.BigInteger(), nullable=True))
    op.create_table(
        "job_counts",
        sa.Column("job_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("number", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_counts_job_id")),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_counts")),
    )
