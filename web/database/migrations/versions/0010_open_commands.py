"""Adds the table of audited commands that began and have no entry yet."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "open_commands",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("author_json", sa.String, nullable=False),
        sa.Column("command_json", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("open_commands")
