"""Jobs have a priority."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Adds the column; existing jobs get the default."""
    op.add_column("jobs", sa.Column("priority", sa.BigInteger(), nullable=True))
    op.execute("UPDATE jobs SET priority = 0")
