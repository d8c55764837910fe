"""What made an instance go, beside its state."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; of what went earlier, or is on its way out, no more is known than the journal has of failed launches."""
    op.add_column("fleet_instances", sa.Column("cause", sa.String, nullable=True))
    op.execute(
        "update fleet_instances set cause = 'failed' where exists (select 1 from fleet_decisions where "
        "kind = 'launch_failed' and message like 'launch ' || fleet_instances.id || ' failed%')"
    )


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("fleet_instances", "cause")
