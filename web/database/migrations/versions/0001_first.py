"""Adds users, sessions, login tokens, run records and their points."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "users",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "login_tokens",
        sa.Column("token_hash", sa.String, primary_key=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float),
    )
    op.create_table(
        "sessions",
        sa.Column("cookie_hash", sa.String, primary_key=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "run_records",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, index=True),
        sa.Column("recipe", sa.String, nullable=False),
        sa.Column("dataflow", sa.String, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("last_at", sa.Float, nullable=False),
        sa.Column("last_sequence", sa.Integer, nullable=False),
        sa.Column("report_json", sa.String, nullable=False),
    )
    op.create_table(
        "run_points",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), primary_key=True),
        sa.Column("policy", sa.String, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("reward", sa.Float),
        sa.Column("reward_average", sa.Float),
        sa.Column("reward_trained", sa.Float),
        sa.Column("wait", sa.Float),
        sa.Column("produced", sa.Float, nullable=False),
        sa.Column("consumed", sa.Float, nullable=False),
        sa.Column("buffered", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("lag", sa.Integer),
    )


def downgrade() -> None:
    """Drops the tables."""
    for table in ("run_points", "run_records", "sessions", "login_tokens", "users"):
        op.drop_table(table)
