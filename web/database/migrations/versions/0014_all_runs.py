"""Runs of other pages: records know how much of their history is recorded, and launches are in the folders of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drops the table of launches; all recorded runs were followed, so their history is recorded."""
    op.add_column("run_records", sa.Column("history_sequence", sa.Integer, nullable=False, server_default="0"))
    op.add_column("run_records", sa.Column("metadata_json", sa.String, nullable=False, server_default=""))
    op.execute("UPDATE run_records SET history_sequence = last_sequence")
    op.drop_table("launched_runs")
    op.create_table(
        "user_preferences",
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Creates an empty table of launches."""
    op.drop_table("user_preferences")
    op.drop_column("run_records", "history_sequence")
    op.drop_column("run_records", "metadata_json")
    op.create_table(
        "launched_runs",
        sa.Column("name", sa.String, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("recipe", "folder", "actor", "launch_request")),
        sa.Column("launched_at", sa.Float, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("has_fleet", "ends_by_itself", "needs_admin")),
        sa.Column("limit_s", sa.Float),
        sa.Column("launch_key", sa.String),
    )
    op.create_index("ix_launched_runs_launch_key", "launched_runs", ["launch_key"], unique=True)
