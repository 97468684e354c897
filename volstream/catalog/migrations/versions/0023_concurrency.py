"""Jobs have a concurrency."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Adds the column; NULL: the function's declaration applies."""
    op.add_column("jobs", sa.Column("concurrency", sa.BigInteger(), nullable=True))
