"""Owner of the ledger, and time since when an instance is suspect."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds both."""
    op.add_column("fleet_instances", sa.Column("suspect_at", sa.Float))
    op.create_table(
        "fleet_owner",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("place", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Removes both."""
    op.drop_table("fleet_owner")
    op.drop_column("fleet_instances", "suspect_at")
