"""Inventory reports: the folder from which a volume's daemon reads them."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Adds the column; NULL: the volume is listed."""
    op.add_column("volumes", sa.Column("inventory", sa.Text(), nullable=True))
