"""Adds whether a launched run has settings that only an admin may override."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; it is unknown for earlier runs, so only an admin can relaunch them."""
    op.add_column("launched_runs", sa.Column("needs_admin", sa.Boolean, nullable=False, server_default=sa.true()))


def downgrade() -> None:
    """Drops the column."""
    op.drop_column("launched_runs", "needs_admin")
