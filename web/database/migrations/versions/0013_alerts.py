"""Adds rules of alerts, their receivers, the alerts that fired, and notices that wait."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TABLES = ("alert_deliveries", "alerts", "alert_receivers", "alert_rules")


def upgrade() -> None:
    op.create_table(
        "alert_rules",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("spec_json", sa.String, nullable=False),
        sa.Column("is_from_file", sa.Boolean, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("changed_at", "muted_until")),
    )
    op.create_table(
        "alert_receivers",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("kind", "target", "salt")),
        sa.Column("allows_private", sa.Boolean, nullable=False),
        sa.Column("created_by", sa.String, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("created_at", "sent_at")),
        sa.Column("problem", sa.String, nullable=False),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("rule_id", sa.Integer, nullable=False, index=True),
        sa.Column("rule_name", sa.String, nullable=False),
        sa.Column("run", sa.String, nullable=False, index=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("severity", "series", "series_value", "text")),
        sa.Column("number", sa.Float),
        sa.Column("subjects", sa.Integer, nullable=False),
        sa.Column("began_at", sa.Float, nullable=False, index=True),
        sa.Column("ended_at", sa.Float),
        sa.Column("ended_because", sa.String, nullable=False),
        sa.Column("is_notified", sa.Boolean, nullable=False),
    )
    op.create_table(
        "alert_deliveries",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("receiver_id", sa.Integer, sa.ForeignKey("alert_receivers.id"), nullable=False, index=True),
        sa.Column("events_json", sa.String, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("created_at", "next_at")),
    )


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
