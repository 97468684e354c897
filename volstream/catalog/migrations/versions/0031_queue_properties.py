"""Queues may need properties, such as the brokers of a topic."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Adds the column; NULL: none."""
    op.add_column("volumes", sa.Column("queue_properties", sa.JSON(), nullable=True))
