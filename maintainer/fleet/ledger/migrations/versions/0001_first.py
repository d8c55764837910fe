"""Pools, instances, audit log, replies, orphans and the kill switch."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIMES = ("launched_at", "ready_at", "draining_at", "retiring_at")


def upgrade() -> None:
    """Creates the first tables."""
    op.create_table(
        "fleet_pools",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("spec_json", sa.String, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("target", sa.Integer, nullable=False),
        sa.Column("hold_until", sa.Float),
        sa.Column("hold_reason", sa.String, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("breaker_until", sa.Float),
        sa.Column("changed_at_json", sa.String, nullable=False),
    )
    op.create_table(
        "fleet_instances",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("pool", sa.String, nullable=False, index=True),
        sa.Column("state", sa.String, nullable=False, index=True),
        *[
            sa.Column(name, sa.String, nullable=False)
            for name in ("provider", "handle", "launch_json", "type", "region", "actor", "reason", "message")
        ],
        sa.Column("is_spot", sa.Boolean, nullable=False),
        sa.Column("usd_per_hour", sa.Float, nullable=False),
        sa.Column("intended_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        *[sa.Column(name, sa.Float) for name in _TIMES],
        sa.Column("gone_at", sa.Float, index=True),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_try_at", sa.Float, nullable=False),
        sa.Column("missed", sa.Integer, nullable=False),
        sa.Column("is_told", sa.Boolean, nullable=False),
    )
    op.create_table(
        "fleet_decisions",
        sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("pool", sa.String, nullable=False, index=True),
        *[sa.Column(name, sa.String, nullable=False) for name in ("actor", "role", "reason", "message", "key")],
    )
    op.create_table(
        "fleet_replies",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("asked", sa.String, nullable=False),
        sa.Column("reply_json", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "fleet_orphans",
        sa.Column("provider", sa.String, primary_key=True),
        sa.Column("handle", sa.String, primary_key=True),
        sa.Column("launch_id", sa.String, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_table(
        "fleet_switch",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("switch", "orphans", "replies", "decisions", "instances", "pools"):
        op.drop_table(f"fleet_{table}")
