"""Adds the directory of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; fills it for launched runs."""
    op.add_column("run_records", sa.Column("folder", sa.String, nullable=False, server_default=""))
    op.execute(
        "UPDATE run_records SET folder = COALESCE("
        "(SELECT folder FROM launched_runs WHERE launched_runs.name = run_records.name), '')"
    )


def downgrade() -> None:
    """Drops the column."""
    op.drop_column("run_records", "folder")
