"""Renames columns and stored values to the terms of the glossary: manual override, drain requested, preempted."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COLUMNS = (
    ("fleet_pools", "hold_until", "override_until_at"),
    ("fleet_pools", "hold_reason", "override_reason"),
    ("fleet_instances", "is_told", "is_drain_requested"),
)

VALUES = (
    ("fleet_instances", "cause", "taken", "preempted"),
    ("fleet_instances", "cause", "ordered", "requested"),
    ("fleet_instances", "cause", "unclear", "inconsistent"),
    ("fleet_proposals", "state", "overtaken", "superseded"),
    ("fleet_decisions", "kind", "hold", "override"),
)

JSON_KEYS = (("fleet_proposals", "plan_json", '"hold_s"', '"override_s"'),)


def upgrade() -> None:
    """Renames columns, then values."""
    for table, old, new in COLUMNS:
        op.alter_column(table, old, new_column_name=new)
    _replace(VALUES)
    _replace_within(JSON_KEYS)


def downgrade() -> None:
    """Restores the earlier names."""
    _replace_within(tuple((table, column, new, old) for table, column, old, new in JSON_KEYS))
    _replace(tuple((table, column, new, old) for table, column, old, new in VALUES))
    for table, old, new in COLUMNS:
        op.alter_column(table, new, new_column_name=old)


def _replace(values: tuple[tuple[str, str, str, str], ...]) -> None:
    for table, column, old, new in values:
        field = sa.column(column, sa.String)
        op.execute(sa.table(table, field).update().where(field == old).values({column: new}))


def _replace_within(texts: tuple[tuple[str, str, str, str], ...]) -> None:
    for table, column, old, new in texts:
        field = sa.column(column, sa.String)
        op.execute(sa.table(table, field).update().values({column: sa.func.replace(field, old, new)}))
