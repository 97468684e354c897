"""Adds which jobs have yet to look for rows of files that their streams no longer know, and what a catalog is called."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Adds the column and the table."""
    op.add_column("jobs", sa.Column("may_have_strays", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table("identity", sa.Column("id", sa.String(36), primary_key=True))
    op.execute(f"INSERT INTO identity VALUES ('{uuid.uuid4()}')")
