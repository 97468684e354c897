"""The first schema."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import EscapedText, Path, UtcDateTime

revision = "0020"
down_revision = None


def upgrade() -> None:
    """Creates every table."""

    op.create_table(
        "alert_causes",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("since", UtcDateTime(timezone=True), nullable=False),
        sa.Column("alerted_on", UtcDateTime(timezone=True), nullable=True),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("note", EscapedText(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_alert_causes")),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("receiver", sa.String(length=200), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", EscapedText(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
    )
    op.create_index("ix_alerts_receiver", "alerts", ["receiver", "attempts", "id"], unique=False)
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("object", EscapedText(), nullable=False),
        sa.Column("who", sa.String(length=200), nullable=False),
        sa.Column("began_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("ended_on", UtcDateTime(timezone=True), nullable=True),
        sa.Column("result", EscapedText(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_began", "audit", ["began_on"], unique=False)
    op.create_table(
        "conditions",
        sa.Column("about", sa.String(length=20), nullable=False),
        sa.Column("subject", sa.String(length=500), nullable=False),
        sa.Column("since", UtcDateTime(timezone=True), nullable=False),
        sa.Column("cause", EscapedText(), nullable=False),
        sa.PrimaryKeyConstraint("about", "subject", name=op.f("pk_conditions")),
    )
    op.create_table(
        "connections",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=20), nullable=False),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("role_arn", sa.Text(), nullable=True),
        sa.Column("credentials", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_connections")),
        sa.UniqueConstraint("schema_name", "name", name=op.f("uq_connections_schema_name")),
    )
    op.create_table(
        "feeds",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("primary_key", sa.Text(), nullable=True),
        sa.Column("retention_policy", sa.BigInteger(), nullable=True),
        sa.Column("immutable", sa.Boolean(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feeds")),
        sa.UniqueConstraint("schema_name", "name", name=op.f("uq_feeds_schema_name")),
    )
    op.create_table(
        "functions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("returns", sa.Text(), nullable=False),
        sa.Column("of_items", sa.Boolean(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("search_path", sa.Text(), nullable=True),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_functions")),
        sa.UniqueConstraint("schema_name", "name", name=op.f("uq_functions_schema_name")),
    )
    op.create_table(
        "identity",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_identity")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "links",
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_links")),
    )
    op.create_table(
        "streams",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("source_kind", sa.String(length=20), nullable=False),
        sa.Column("source_id", sa.String(length=401), nullable=False),
        sa.Column("source_schema", sa.String(length=200), nullable=False),
        sa.Column("source_name", sa.String(length=200), nullable=False),
        sa.Column("table_id", sa.String(length=36), nullable=True),
        sa.Column("mode", sa.String(length=20), nullable=False),
        sa.Column("identity", sa.JSON(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("offset", sa.BigInteger(), nullable=True),
        sa.Column("initial", sa.Boolean(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_streams")),
        sa.UniqueConstraint("schema_name", "name", name=op.f("uq_streams_schema_name")),
    )
    op.create_index(op.f("ix_streams_source_id"), "streams", ["source_id"], unique=False)
    op.create_table(
        "tails",
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tails")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("stream_id", sa.String(length=36), nullable=False),
        sa.Column("other_stream_ids", sa.JSON(), nullable=False),
        sa.Column("cls", sa.String(length=20), nullable=False),
        sa.Column("statement", sa.Text(), nullable=True),
        sa.Column("query", sa.Text(), nullable=True),
        sa.Column("function", sa.Text(), nullable=True),
        sa.Column("search_path", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("where", sa.Text(), nullable=True),
        sa.Column("write", sa.String(length=20), nullable=True),
        sa.Column("on_move", sa.String(length=20), nullable=True),
        sa.Column("retries", sa.BigInteger(), nullable=True),
        sa.Column("pause_after", sa.BigInteger(), nullable=True),
        sa.Column("timeout", sa.Float(), nullable=True),
        sa.Column("isolate", sa.Boolean(), nullable=True),
        sa.Column("max_files", sa.BigInteger(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("alert", sa.JSON(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("on_change", sa.Boolean(), nullable=True),
        sa.Column("every", sa.Float(), nullable=True),
        sa.Column("cron", sa.Text(), nullable=True),
        sa.Column("returns", sa.Text(), nullable=True),
        sa.Column("arguments", sa.JSON(), nullable=True),
        sa.Column("declared", sa.Boolean(), nullable=True),
        sa.Column("into_schema", sa.String(length=200), nullable=False),
        sa.Column("into_name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("state_reason", EscapedText(), nullable=True),
        sa.Column("owns_stream", sa.Boolean(), nullable=False),
        sa.Column("clean", sa.Boolean(), nullable=True),
        sa.Column("may_have_strays", sa.Boolean(), nullable=True),
        sa.Column("failed_batches", sa.Integer(), nullable=True),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_started", UtcDateTime(timezone=True), nullable=True),
        sa.Column("last_ended", UtcDateTime(timezone=True), nullable=True),
        sa.Column("last_outcome", EscapedText(), nullable=True),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("fk_jobs_stream_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("schema_name", "name", name=op.f("uq_jobs_schema_name")),
        sa.UniqueConstraint("stream_id", name=op.f("uq_jobs_stream_id")),
    )
    op.create_table(
        "volumes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_name", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("connection_id", sa.String(length=36), nullable=True),
        sa.Column("queue_type", sa.String(length=20), nullable=False),
        sa.Column("queue_name", sa.Text(), nullable=True),
        sa.Column("virtual_cluster", sa.Text(), nullable=False),
        sa.Column("recursive", sa.Boolean(), nullable=False),
        sa.Column("patterns", sa.JSON(), nullable=False),
        sa.Column("ignores", sa.JSON(), nullable=False),
        sa.Column("max_removals", sa.Text(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("table_id", sa.String(length=36), nullable=True),
        sa.Column("refresh_count", sa.BigInteger(), nullable=False),
        sa.Column("reconciled_on", UtcDateTime(timezone=True), nullable=True),
        sa.Column("held_removals", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("accept_removals", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["connection_id"], ["connections.id"], name=op.f("fk_volumes_connection_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volumes")),
        sa.UniqueConstraint("schema_name", "name", name=op.f("uq_volumes_schema_name")),
    )
    op.create_table(
        "failures",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("path", Path(), nullable=False),
        sa.Column("path_digest", sa.String(length=64), server_default="", nullable=False),
        sa.Column("file_version", sa.Text(), nullable=False),
        sa.Column("commit_version", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("message", EscapedText(), nullable=False),
        sa.Column("traceback", EscapedText(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try", UtcDateTime(timezone=True), nullable=True),
        sa.Column("batch_id", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.String(length=36), nullable=False),
        sa.Column("failed_on", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_failures_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failures")),
    )
    op.create_index(op.f("ix_failures_attempt"), "failures", ["attempt"], unique=False)
    op.create_index("ix_failures_due", "failures", ["job_id", "state", "next_try"], unique=False)
    op.create_index("ix_failures_job_digest", "failures", ["job_id", "path_digest"], unique=False)
    op.create_table(
        "job_totals",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_totals_job_id")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_totals")),
    )
    op.create_table(
        "key_checks",
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("path_digest", sa.String(length=64), nullable=False),
        sa.Column("path", Path(), nullable=False),
        sa.Column("asked_on", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], name=op.f("fk_key_checks_volume_id")),
        sa.PrimaryKeyConstraint("volume_id", "path_digest", name=op.f("pk_key_checks")),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("stream_id", sa.String(length=36), nullable=False),
        sa.Column("table_id", sa.String(length=36), nullable=False),
        sa.Column("from_version", sa.BigInteger(), nullable=True),
        sa.Column("to_version", sa.BigInteger(), nullable=False),
        sa.Column("initial", sa.Boolean(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("where", sa.Text(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_plans_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_job_id"), "plans", ["job_id"], unique=False)
    op.create_index("ix_plans_state_created", "plans", ["state", "created_on"], unique=False)
    op.create_index("ix_plans_state_stream", "plans", ["state", "stream_id"], unique=False)
    op.create_index(op.f("ix_plans_stream_id"), "plans", ["stream_id"], unique=False)
    op.create_table(
        "reconciles",
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("began_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("listed", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("missing", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("phantom", sa.BigInteger(), nullable=False),
        sa.Column("late", sa.BigInteger(), nullable=False),
        sa.Column("findings", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], name=op.f("fk_reconciles_volume_id")),
        sa.PrimaryKeyConstraint("volume_id", "began_on", name=op.f("pk_reconciles")),
    )
    op.create_table(
        "refreshes",
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cause", EscapedText(), nullable=False),
        sa.Column("inserted", sa.BigInteger(), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.Column("deleted", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("committed_on", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], name=op.f("fk_refreshes_volume_id")),
        sa.PrimaryKeyConstraint("volume_id", "number", name=op.f("pk_refreshes")),
    )
    op.create_table(
        "rejected_messages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("digest", sa.String(length=64), server_default="", nullable=False),
        sa.Column("subject", EscapedText(), nullable=False),
        sa.Column("reason", EscapedText(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_seen", UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_seen", UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], name=op.f("fk_rejected_messages_volume_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rejected_messages")),
    )
    op.create_index("ix_rejected_volume_digest", "rejected_messages", ["volume_id", "digest"], unique=True)
    op.create_index("ix_rejected_volume_seen", "rejected_messages", ["volume_id", "last_seen"], unique=False)
    op.create_table(
        "volume_totals",
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], name=op.f("fk_volume_totals_volume_id")),
        sa.PrimaryKeyConstraint("volume_id", name=op.f("pk_volume_totals")),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("plan_id", sa.String(length=36), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("stream_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("after_path", Path(), nullable=True),
        sa.Column("until_path", Path(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("replaced", sa.BigInteger(), nullable=False),
        sa.Column("removals", sa.BigInteger(), nullable=False),
        sa.Column("moves", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("created_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("committed_on", UtcDateTime(timezone=True), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_batches_job_id")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_batches_plan_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.UniqueConstraint("plan_id", "number", name=op.f("uq_batches_plan_id")),
    )
    op.create_index("ix_batches_job_committed", "batches", ["job_id", "committed_on"], unique=False)
    op.create_index("ix_batches_job_created", "batches", ["job_id", "created_on", "number", "id"], unique=False)
    op.create_index("ix_batches_job_state", "batches", ["job_id", "state"], unique=False)
    op.create_index("ix_batches_plan_state", "batches", ["plan_id", "state", "number"], unique=False)
    op.create_index("ix_batches_stream", "batches", ["stream_id"], unique=False)
    op.create_table(
        "intents",
        sa.Column("stream_id", sa.String(length=36), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("batch_id", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.String(length=36), nullable=False),
        sa.Column("marker_stream_id", sa.String(length=36), nullable=False),
        sa.Column("marker_sequence", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("started_on", UtcDateTime(timezone=True), nullable=False),
        sa.Column("ended_on", UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_intents_batch_id")),
        sa.PrimaryKeyConstraint("stream_id", "sequence", name=op.f("pk_intents")),
    )
    op.create_index(op.f("ix_intents_attempt"), "intents", ["attempt"], unique=False)
    op.create_index(op.f("ix_intents_batch_id"), "intents", ["batch_id"], unique=False)
    op.create_index("ix_intents_stream_state", "intents", ["stream_id", "state"], unique=False)
