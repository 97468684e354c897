"""Adds the tables outside of the warehouse. A file of the warehouse had them; the first use of such a table finds it again."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "links",
        sa.Column("name", sa.String(500), primary_key=True),
        sa.Column("location", sa.Text(), nullable=False),
    )
