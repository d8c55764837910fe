"""Change of an applied plan in numbers."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; earlier decisions have only their message."""
    op.add_column("fleet_decisions", sa.Column("change_json", sa.String, nullable=True))


def downgrade() -> None:
    """Removes the column."""
    op.drop_column("fleet_decisions", "change_json")
