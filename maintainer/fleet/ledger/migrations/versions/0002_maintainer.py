"""Proposals, the maintainer's mode, and a copy of its transcript."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "fleet_proposals",
        sa.Column("plan", sa.String, primary_key=True),
        sa.Column("pool", sa.String, nullable=False, index=True),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("plan_json", sa.String, nullable=False),
        sa.Column("proposed_at", sa.Float, nullable=False),
        sa.Column("actor", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("decided_at", sa.Float),
        sa.Column("decided_by", sa.String, nullable=False),
        sa.Column("decision_reason", sa.String, nullable=False),
    )
    op.create_table(
        "fleet_maintainer",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("mode", sa.String, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "fleet_transcript",
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("chain", sa.String, nullable=False, index=True),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("wake", sa.String, nullable=False, index=True),
        sa.Column("kind", sa.String, nullable=False),
        *[sa.Column(name, sa.String, nullable=False) for name in ("body_json", "previous", "hash")],
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("transcript", "maintainer", "proposals"):
        op.drop_table(f"fleet_{table}")
