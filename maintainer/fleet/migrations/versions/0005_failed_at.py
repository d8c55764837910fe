"""When a launch failed, apart from when it ended: one that was taken back before it worked did not fail."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; of earlier launches the journal knows."""
    op.add_column("fleet_instances", sa.Column("failed_at", sa.Float))
    op.execute(
        "update fleet_instances set failed_at = (select max(at) from fleet_decisions where kind = 'launch_failed' "
        "and message like 'launch ' || fleet_instances.id || ' failed%')"
    )


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("fleet_instances", "failed_at")
