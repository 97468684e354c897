"""Entries of the audit are the tasks of the console, too."""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"

_COLUMNS = [
    sa.Column("cluster", sa.String(200)),
    sa.Column("parameters", sa.JSON),
    sa.Column("state", sa.String(20)),
    sa.Column("cancelled", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("step", sa.Text),
    sa.Column("done", sa.BigInteger),
    sa.Column("files", sa.BigInteger),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("plan_id", sa.String(36)),
    sa.Column("error", sa.String(100)),
    sa.Column("remedy", sa.Text),
    sa.Column("outcome", sa.JSON),
]

_ENDED = """UPDATE audit SET ended_on = coalesce(ended_on, began_on), state = CASE
    WHEN ended_on IS NULL OR result LIKE 'failed: %' THEN 'failed'
    WHEN result LIKE 'cancelled: %' THEN 'cancelled'
    ELSE 'finished' END"""


def upgrade() -> None:
    """Tasks that had not ended were lost with their daemon."""
    for column in _COLUMNS:
        op.add_column("audit", column)
    op.execute(_ENDED)
    with op.batch_alter_table("audit") as table:
        table.alter_column("state", existing_type=sa.String(20), nullable=False)
    op.create_index("ix_audit_open", "audit", ["cluster", "ended_on"])
