"""Jobs have generations, and attempts know with which one they work."""

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = "0104"


def upgrade() -> None:
    """Attempts that are open count as before."""
    op.add_column("jobs", sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("intents", sa.Column("generation", sa.BigInteger))
