"""Functions return files, which are written to another volume."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import Path

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Adds the options of jobs, and the ledger of output files."""
    op.add_column("jobs", sa.Column("outputs_to", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("outputs_prefix", sa.Text(), nullable=True))
    in_bytes = Path()
    op.create_table(
        "outputs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("table_name", sa.String(401), nullable=False),
        sa.Column("volume_id", sa.String(36), nullable=False),
        sa.Column("path", in_bytes, nullable=False),
        sa.Column("path_digest", sa.String(64), nullable=False),
        sa.Column("source", in_bytes, nullable=False),
        sa.Column("source_digest", sa.String(64), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("replaced_by", sa.String(36), nullable=True),
        sa.Column("staged", sa.Text(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outputs")),
    )
    for name, columns in (
        ("attempt", ["attempt"]),
        ("replaced_by", ["replaced_by"]),
        ("table_source", ["table_name", "source_digest"]),
        ("table_state", ["table_name", "state"]),
        ("volume_path", ["volume_id", "path_digest"]),
    ):
        op.create_index(f"ix_outputs_{name}", "outputs", columns)
