"""What the guard said, beside every decision on a plan."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; of earlier decisions nothing is known."""
    op.add_column("fleet_decisions", sa.Column("findings_json", sa.String, nullable=False, server_default="[]"))


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("fleet_decisions", "findings_json")
