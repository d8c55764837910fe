"""The guard's findings with every decision on a plan."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; earlier decisions have no findings."""
    op.add_column("fleet_decisions", sa.Column("findings_json", sa.String, nullable=False, server_default="[]"))


def downgrade() -> None:
    """Removes the column."""
    op.drop_column("fleet_decisions", "findings_json")
