"""Jobs know whether ``run`` made them."""

import sqlalchemy as sa
from alembic import op

revision = "0106"
down_revision = "0105"


def upgrade() -> None:
    """Of jobs that were there it is not known."""
    op.add_column("jobs", sa.Column("made_by_run", sa.Boolean))
    op.execute("UPDATE jobs SET made_by_run = false WHERE function IS NOT NULL")
