"""Cause of an instance's termination."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; for earlier terminations only causes of failed launches are known, from the audit log."""
    op.add_column("fleet_instances", sa.Column("cause", sa.String, nullable=True))
    op.execute(
        "update fleet_instances set cause = 'failed' where exists (select 1 from fleet_decisions where "
        "kind = 'launch_failed' and message like 'launch ' || fleet_instances.id || ' failed%')"
    )


def downgrade() -> None:
    """Removes the column."""
    op.drop_column("fleet_instances", "cause")
