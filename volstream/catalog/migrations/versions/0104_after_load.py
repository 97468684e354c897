"""Jobs may take files out of their volume once these are loaded."""

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    """Jobs of files that were there keep them."""
    op.add_column("jobs", sa.Column("after_load", sa.Text))
    op.execute("UPDATE jobs SET after_load = 'keep' WHERE function IS NOT NULL")
