"""Jobs may need processors, memory and GPUs for each of their workers."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Adds the columns; NULL: a slot, the setting's memory, and no GPU."""
    for name in ("cpus", "memory", "gpus"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), nullable=True))
