"""What functions count is kept by day; volumes and jobs have revisions."""

from datetime import date
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"


def upgrade() -> None:
    """What was counted before is of no known day: it keeps the first one."""
    op.execute("CREATE TABLE sums AS SELECT job_id, name, number FROM job_counts")
    op.drop_table("job_counts")
    counts = op.create_table(
        "job_counts",
        sa.Column("job_id", sa.String(36), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("number", sa.Float, nullable=False),
    )
    columns: list[Any] = [sa.column("job_id"), sa.column("name"), sa.literal(date(1970, 1, 1), sa.Date), sa.column("number")]
    op.execute(counts.insert().from_select(counts.c.keys(), sa.select(*columns).select_from(sa.table("sums"))))
    op.drop_table("sums")
    for table in ("volumes", "jobs"):
        op.add_column(table, sa.Column("revision", sa.BigInteger, nullable=False, server_default="0"))
