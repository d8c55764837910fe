"""Where a run keeps what there is to look at, when that is known."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; runs that were launched from here have said where they are."""
    op.add_column("run_records", sa.Column("folder", sa.String, nullable=False, server_default=""))
    op.execute(
        "UPDATE run_records SET folder = COALESCE("
        "(SELECT folder FROM launched_runs WHERE launched_runs.name = run_records.name), '')"
    )


def downgrade() -> None:
    """Take it away."""
    op.drop_column("run_records", "folder")
