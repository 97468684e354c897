"""Offsets of streams on volumes become refresh numbers instead of Delta table versions."""

from alembic import op

revision = "0002"
down_revision = "0001"

#: The newest refresh committed at or before a version. A refresh left open by a crash was the next version.
_NUMBER = """coalesce((
    SELECT max(r.number) FROM refreshes r
    WHERE r.volume_id = {volume} AND r.state IN ('committed', 'intent') AND coalesce(r.version, r.base_version + 1) <= {version}
), 0)"""


def upgrade() -> None:
    """Renumbers the offsets, and drops what only commits by Spark needed."""
    on_volume = "SELECT s.source_id FROM streams s WHERE s.source_kind = 'volume' AND s.id = {stream}"
    number = _NUMBER.format(volume="streams.source_id", version='streams."offset"')
    op.execute(f"""UPDATE streams SET "offset" = {number} WHERE source_kind = 'volume' AND "offset" IS NOT NULL""")
    of_plan = on_volume.format(stream="plans.stream_id")
    for column in ("from_version", "to_version"):
        number = _NUMBER.format(volume=f"({of_plan})", version=f"plans.{column}")
        op.execute(f"UPDATE plans SET {column} = {number} WHERE {column} IS NOT NULL AND EXISTS ({of_plan})")
    of_job = (
        "SELECT s.source_id FROM streams s JOIN jobs j ON j.stream_id = s.id "
        "WHERE s.source_kind = 'volume' AND j.id = failures.job_id"
    )
    number = _NUMBER.format(volume=f"({of_job})", version="failures.commit_version")
    op.execute(f"UPDATE failures SET commit_version = {number} WHERE EXISTS ({of_job})")
    op.execute("DELETE FROM refreshes WHERE state <> 'committed'")
    op.execute("UPDATE refreshes SET committed_on = started_on WHERE committed_on IS NULL")
    with op.batch_alter_table("refreshes") as batch:
        for column in ("state", "base_version", "version", "started_on"):
            batch.drop_column(column)
        batch.alter_column("committed_on", nullable=False)
    # Without copying the table, which other tables refer to.
    for column in ("listing_digest", "listing_refresh"):
        op.drop_column("volumes", column)
