"""Files wait because their function asked to be called later."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Adds the column; NULL: the function did not ask."""
    op.add_column("failures", sa.Column("waiting_since", sa.DateTime(timezone=True), nullable=True))
