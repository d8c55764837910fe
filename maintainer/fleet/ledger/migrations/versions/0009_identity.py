"""Adds the ledger's identity; that of an existing ledger is empty, because its instances have tags without one."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column."""
    op.add_column("fleet_owner", sa.Column("identity", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    """Drops the column."""
    op.drop_column("fleet_owner", "identity")
