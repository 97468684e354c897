"""The catalog stores functions that are not in a file; sources have one name."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Adds the columns (existing functions have files), and renames the table of sources."""
    op.add_column("jobs", sa.Column("pickled", sa.LargeBinary(), nullable=True))
    op.add_column("functions", sa.Column("pickled", sa.LargeBinary(), nullable=True))
    op.rename_table("feeds", "sources")
    with op.batch_alter_table("sources") as batch:
        batch.drop_constraint("uq_feeds_schema_name", type_="unique")
        batch.create_unique_constraint("uq_sources_schema_name", ["schema_name", "name"])
