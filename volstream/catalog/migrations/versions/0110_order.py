"""Jobs may take the newest files first; their batches are cut by time."""

import sqlalchemy as sa
from alembic import op

from volstream.catalog.tables import UtcDateTime

revision = "0110"
down_revision = "0109"


def upgrade() -> None:
    """Jobs of files that were there go by path."""
    op.add_column("jobs", sa.Column("order", sa.String(20)))
    op.execute("""UPDATE jobs SET "order" = 'path' WHERE function IS NOT NULL""")
    for name in ("after_time", "until_time"):
        op.add_column("batches", sa.Column(name, UtcDateTime))
