"""Adds the idempotency key and the request of a launch."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns; earlier runs have no key."""
    op.add_column("launched_runs", sa.Column("launch_key", sa.String))
    op.add_column("launched_runs", sa.Column("launch_request", sa.String, nullable=False, server_default=""))
    op.create_index("ix_launched_runs_launch_key", "launched_runs", ["launch_key"], unique=True)


def downgrade() -> None:
    """Drops the columns."""
    op.drop_index("ix_launched_runs_launch_key", "launched_runs")
    op.drop_column("launched_runs", "launch_request")
    op.drop_column("launched_runs", "launch_key")
