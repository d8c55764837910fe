"""Adds labels of sampled trajectories."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "trajectory_labels",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), nullable=False),
        sa.Column("ordinal", sa.BigInteger, nullable=False),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("expected_reward", sa.Float),
        *(sa.Column(name, sa.String, nullable=False) for name in ("note", "author")),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("rollout_json", sa.String, nullable=False),
        sa.UniqueConstraint("run_id", "ordinal", "label"),
    )


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("trajectory_labels")
