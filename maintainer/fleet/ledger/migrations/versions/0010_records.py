"""Decisions are records with a cause, a severity and values; the sentence of an older one is its value `text`."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TABLE = sa.table(
    "fleet_decisions",
    *(sa.column(name, sa.String) for name in ("kind", "message", "severity", "values_json")),
    sa.column("ordinal", sa.Integer),
)
_KINDS = ("alarm", "alarm_over", "escalate")
"""Kinds whose sentence began with the severity."""
_SEVERITIES = ("info", "warning", "critical")


def upgrade() -> None:
    """Adds the columns and fills them from the sentences."""
    op.add_column("fleet_decisions", sa.Column("cause", sa.String, nullable=False, server_default=""))
    op.add_column("fleet_decisions", sa.Column("severity", sa.String, nullable=False, server_default="info"))
    op.add_column("fleet_decisions", sa.Column("values_json", sa.String, nullable=False, server_default="{}"))
    connection = op.get_bind()
    for row in connection.execute(sa.select(_TABLE)).all():
        severity, _, text = row.message.partition(": ")
        if row.kind not in _KINDS or severity not in _SEVERITIES:
            severity, text = "info", row.message
        changed = _TABLE.update().where(_TABLE.c.ordinal == row.ordinal)
        connection.execute(changed.values(severity=severity, values_json=json.dumps({"text": text})))
    op.drop_column("fleet_decisions", "message")


def downgrade() -> None:
    """Restores the sentences of rows that have one."""
    op.add_column("fleet_decisions", sa.Column("message", sa.String, nullable=False, server_default=""))
    connection = op.get_bind()
    for row in connection.execute(sa.select(_TABLE)).all():
        changed = _TABLE.update().where(_TABLE.c.ordinal == row.ordinal)
        connection.execute(changed.values(message=json.loads(row.values_json).get("text", row.kind)))
    for column in ("values_json", "severity", "cause"):
        op.drop_column("fleet_decisions", column)
