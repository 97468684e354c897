"""History can be deleted: totals are kept separately, open work is found without it, and no index holds unbounded text.

Also adds a volume's current trouble, and removals that wait for confirmation.
"""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import Path, Said, UtcDateTime, digest

revision = "0003"
down_revision = "0002"

#: Rows whose digests are computed together.
_CHUNK = 1000


def upgrade() -> None:
    """Adds columns, indexes and sums."""
    # Without copying the table, which other tables refer to.
    op.add_column("volumes", sa.Column("trouble", Said()))
    op.add_column("volumes", sa.Column("max_removals", sa.String(40)))
    op.add_column("volumes", sa.Column("held_removals", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("volumes", sa.Column("accept_removals", sa.Boolean(), nullable=False, server_default=sa.false()))
    _sum_up()
    op.create_index("ix_plans_state_stream", "plans", ["state", "stream_id"])
    op.create_index("ix_plans_state_created", "plans", ["state", "created_on"])
    op.create_index("ix_batches_job_state", "batches", ["job_id", "state"])
    op.create_index("ix_batches_plan_state", "batches", ["plan_id", "state", "number"])
    op.create_index("ix_batches_stream", "batches", ["stream_id"])
    op.create_index("ix_intents_stream_state", "intents", ["stream_id", "state"])
    _digest("failures", "path_digest", "path")
    op.drop_index("ix_failures_job_path", "failures")
    op.create_index("ix_failures_job_digest", "failures", ["job_id", "path_digest"])
    # Failures of attempts that were ended without them, because their process was taken for dead.
    op.execute(
        "DELETE FROM failures WHERE state = 'pending' AND NOT EXISTS "
        "(SELECT 1 FROM intents i WHERE i.attempt = failures.attempt AND i.state = 'intent')"
    )
    # Waiting failures are now checked again automatically.
    op.execute("UPDATE failures SET next_try = failed_on WHERE state = 'waiting' AND next_try IS NULL")
    _digest("rejected_messages", "digest", "subject", "reason")
    op.drop_index("ix_rejected_volume", "rejected_messages")
    op.create_index("ix_rejected_volume_digest", "rejected_messages", ["volume_id", "digest"], unique=True)
    op.create_index("ix_rejected_volume_seen", "rejected_messages", ["volume_id", "last_seen"])
    _key_checks()


def _sum_up() -> None:
    op.create_table(
        "volume_totals",
        sa.Column("volume_id", sa.String(36), sa.ForeignKey("volumes.id"), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("files", "changed", "bytes")),
    )
    op.execute(
        "INSERT INTO volume_totals SELECT volume_id, sum(inserted - deleted), sum(inserted + updated + deleted), sum(bytes) "
        "FROM refreshes GROUP BY volume_id"
    )
    names = ("batches", "succeeded", "failed", "rows", "bytes")
    op.create_table(
        "job_totals",
        sa.Column("job_id", sa.String(36), sa.ForeignKey("jobs.id"), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in names),
    )
    op.execute(
        """INSERT INTO job_totals SELECT job_id, count(*), sum(succeeded), sum(failed), sum("rows"), sum(bytes) """
        "FROM batches WHERE state = 'committed' AND job_id IS NOT NULL GROUP BY job_id"
    )


def _digest(name: str, column: str, *of: str) -> None:
    """Adds a column with the digests of another column."""
    op.add_column(name, sa.Column(column, sa.String(64), nullable=False, server_default=""))
    connection = op.get_bind()
    table = sa.table(name, sa.column("id"), sa.column(column), *(sa.column(one) for one in of))
    found = connection.execute(sa.select(table.c.id, *(table.c[one] for one in of))).fetchall()
    change = sa.update(table).where(table.c.id == sa.bindparam("row_id")).values({column: sa.bindparam("of_row")})
    for start in range(0, len(found), _CHUNK):
        some = found[start : start + _CHUNK]
        connection.execute(change, [{"row_id": row[0], "of_row": digest("\0".join(row[1:]))} for row in some])


def _key_checks() -> None:
    """Re-creates the table, whose key becomes a digest, with its pending requests."""
    connection = op.get_bind()
    asked = connection.execute(sa.text("SELECT volume_id, path, asked_on FROM key_checks")).fetchall()
    op.drop_table("key_checks")
    op.create_table(
        "key_checks",
        sa.Column("volume_id", sa.String(36), sa.ForeignKey("volumes.id"), primary_key=True),
        sa.Column("path_digest", sa.String(64), primary_key=True),
        sa.Column("path", Path(), nullable=False),
        sa.Column("asked_on", UtcDateTime(), nullable=False),
    )
    insert = sa.text(
        "INSERT INTO key_checks (volume_id, path_digest, path, asked_on) VALUES (:volume, :digest, :path, :asked)"
    )
    for volume, path, when in asked:
        connection.execute(insert, {"volume": volume, "digest": digest(path), "path": path, "asked": when})
