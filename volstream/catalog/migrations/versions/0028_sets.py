"""Jobs may call their function on sets of files."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Adds the columns; NULL: the function takes single files."""
    op.add_column("jobs", sa.Column("group_by", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("group_complete", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("group_quiet", sa.Float(), nullable=True))
