"""Renames columns: hash of a request, process that owns the ledger, sequence of a transcript entry."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = (
    ("fleet_replies", "asked", "request_hash"),
    ("fleet_owner", "place", "process"),
    ("fleet_transcript", "place", "sequence"),
)


def upgrade() -> None:
    """Renames the columns."""
    for table, old, new in COLUMNS:
        op.alter_column(table, old, new_column_name=new)


def downgrade() -> None:
    """Restores the earlier names."""
    for table, old, new in COLUMNS:
        op.alter_column(table, new, new_column_name=old)
