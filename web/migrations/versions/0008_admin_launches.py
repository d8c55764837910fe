"""Whether a launched run has settings that only an admin may override."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier runs it is not known, so only an admin launches another like one of them."""
    op.add_column("launched_runs", sa.Column("needs_admin", sa.Boolean, nullable=False, server_default=sa.true()))


def downgrade() -> None:
    """Take it away."""
    op.drop_column("launched_runs", "needs_admin")
