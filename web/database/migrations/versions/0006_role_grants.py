"""Adds roles on one run or one of its pools."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "role_grants",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("token_id", sa.Integer, sa.ForeignKey("api_tokens.id")),
        *(sa.Column(name, sa.String, nullable=False) for name in ("role", "run", "pool", "granted_by")),
        sa.Column("created_at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("role_grants")
