"""Functions of jobs may run in environments of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Adds the column; NULL: volstream's own packages."""
    op.add_column("jobs", sa.Column("environment", sa.Text(), nullable=True))
