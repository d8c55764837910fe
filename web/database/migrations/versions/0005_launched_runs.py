"""Adds runs launched from the page."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "launched_runs",
        sa.Column("name", sa.String, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("recipe", "folder", "actor")),
        sa.Column("launched_at", sa.Float, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("has_fleet", "ends_by_itself")),
        sa.Column("limit_s", sa.Float),
    )


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("launched_runs")
