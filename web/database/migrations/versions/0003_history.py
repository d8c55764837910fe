"""Replaces the table of points by series of any subject at three levels of detail."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

VALUES = (
    "reward",
    "reward_average",
    "reward_trained",
    "wait",
    "produced",
    "consumed",
    "buffered",
    "version",
    "steps",
    "lag",
)


def upgrade() -> None:
    """Creates the tables and moves the points."""
    op.create_table(
        "series_names",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("value", sa.String, nullable=False),
        sa.UniqueConstraint("run_id", "subject", "value"),
    )
    _make_level("series_seconds")
    for name in ("series_ten_seconds", "series_five_minutes"):
        _make_level(name, "low", "high")
    op.create_table(
        "series_rolled",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), primary_key=True, autoincrement=False),
        sa.Column("width_s", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("until", sa.Float, nullable=False),
    )
    for value in VALUES:
        op.execute(
            "INSERT INTO series_names (run_id, subject, value)"  # noqa: S608 (a name of the list above)
            f" SELECT DISTINCT run_id, 'policy/' || policy, '{value}' FROM run_points WHERE {value} IS NOT NULL"
        )
        op.execute(
            "INSERT INTO series_seconds (series_id, at, number)"  # noqa: S608 (a name of the list above)
            f" SELECT series_names.id, run_points.at, max(run_points.{value})"
            " FROM run_points JOIN series_names ON series_names.run_id = run_points.run_id"
            f" AND series_names.subject = 'policy/' || run_points.policy AND series_names.value = '{value}'"
            f" WHERE run_points.{value} IS NOT NULL GROUP BY series_names.id, run_points.at"
        )
    op.drop_table("run_points")


def downgrade() -> None:
    """Recreates the table of points, empty: it cannot hold the aggregated levels."""
    op.create_table(
        "run_points",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), primary_key=True),
        sa.Column("policy", sa.String, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        *(sa.Column(name, sa.Float) for name in ("reward", "reward_average", "reward_trained", "wait")),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("produced", "consumed")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("buffered", "version", "steps")),
        sa.Column("lag", sa.Integer),
    )
    for table in ("series_rolled", "series_five_minutes", "series_ten_seconds", "series_seconds", "series_names"):
        op.drop_table(table)


def _make_level(table: str, *more: str) -> None:
    op.create_table(
        table,
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series_names.id"), primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, primary_key=True),
        sa.Column("number", sa.Float, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in more),
        sqlite_with_rowid=False,
    )
