"""Creates the table of training steps, which are no longer series."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LEVELS = ("series_seconds", "series_ten_seconds", "series_five_minutes")


def upgrade() -> None:
    """Creates the table; deletes the thinned series that it replaces."""
    op.create_table(
        "training_steps",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), primary_key=True, autoincrement=False),
        sa.Column("policy", sa.String, primary_key=True),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("total_tokens", sa.BigInteger, nullable=False),
        sa.Column("total_episodes", sa.BigInteger, nullable=False),
        sa.Column("reward", sa.Float, nullable=False),
        sa.Column("metrics_json", sa.String, nullable=False),
        sqlite_with_rowid=False,
    )
    for table in LEVELS:
        op.execute(
            f"DELETE FROM {table} WHERE series_id IN (SELECT id FROM series_names WHERE subject LIKE 'training/%')"  # noqa: S608 (constants)
        )
    op.execute("DELETE FROM series_names WHERE subject LIKE 'training/%'")


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("training_steps")
