"""Definitions have a history."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import UtcDateTime

revision = "0109"
down_revision = "0108"


def upgrade() -> None:
    """The first change of an object also saves what it was before."""
    op.create_table(
        "definition_versions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(401), nullable=False),
        sa.Column("object_id", sa.String(36), nullable=False),
        sa.Column("saved_on", UtcDateTime, nullable=False),
        sa.Column("saved_by", sa.Text, nullable=False),
        sa.Column("definition", sa.JSON),
        sa.Column("pickled", sa.LargeBinary),
    )
    op.create_index("ix_definition_versions_name", "definition_versions", ["kind", "name", "id"])
    op.create_index("ix_definition_versions_object", "definition_versions", ["object_id", "id"])
