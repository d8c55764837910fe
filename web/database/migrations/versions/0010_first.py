"""Creates the tables of the first release. The number is that of its last draft, whose databases it admits."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None

NO_HASH = "0" * 64

SQLITE = (
    """CREATE TRIGGER audit_entries_update BEFORE UPDATE ON audit_entries
        BEGIN SELECT RAISE(ABORT, 'audit entries are never changed'); END""",
    """CREATE TRIGGER audit_entries_delete BEFORE DELETE ON audit_entries
        WHEN OLD.sequence >= (SELECT first_sequence FROM audit_chain)
        BEGIN SELECT RAISE(ABORT, 'audit entries are removed by retention only'); END""",
)
POSTGRESQL = (
    """CREATE FUNCTION audit_entries_keep() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE' THEN RAISE EXCEPTION 'audit entries are never changed'; END IF;
            IF OLD.sequence >= (SELECT first_sequence FROM audit_chain) THEN
                RAISE EXCEPTION 'audit entries are removed by retention only';
            END IF;
            RETURN OLD;
        END $$""",
    """CREATE TRIGGER audit_entries_keep BEFORE UPDATE OR DELETE ON audit_entries
        FOR EACH ROW EXECUTE FUNCTION audit_entries_keep()""",
)

TABLES = (
    *("series_rolled", "series_five_minutes", "series_ten_seconds", "series_seconds", "series_names"),
    *("open_commands", "audit_entries", "audit_chain", "preferences", "launched_runs", "run_records"),
    *("role_grants", "api_tokens", "sessions", "login_tokens", "users"),
)


def upgrade() -> None:
    """Creates the tables."""
    _create_accounts()
    _create_audit()
    _create_runs()


def downgrade() -> None:
    """Drops the tables."""
    for table in TABLES:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_entries_keep()")


def _create_accounts() -> None:
    op.create_table(
        "users",
        _id(),
        sa.Column("name", sa.String, nullable=False, unique=True),
        *_texts("role"),
        *_numbers("created_at"),
        sa.Column("password_hash", sa.String),
        sa.Column("identity", sa.String),
        sa.Column("disabled_at", sa.Float),
    )
    op.create_index("ix_users_identity", "users", ["identity"], unique=True)
    op.create_table(
        "login_tokens",
        sa.Column("token_hash", sa.String, primary_key=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
        *_numbers("created_at", "expires_at"),
        sa.Column("used_at", sa.Float),
    )
    op.create_table(
        "sessions",
        sa.Column("cookie_hash", sa.String, primary_key=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
        *_numbers("created_at", "expires_at"),
        sa.Column("revoked_at", sa.Float),
        *_texts("came_from", "browser", "opened_by"),
    )
    op.create_table(
        "api_tokens",
        _id(),
        sa.Column("token_hash", sa.String, nullable=False, unique=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False, index=True),
        *_texts("name", "scope"),
        *_numbers("created_at", "expires_at"),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "role_grants",
        _id(),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("token_id", sa.Integer, sa.ForeignKey("api_tokens.id")),
        *_texts("role", "run", "pool", "granted_by"),
        *_numbers("created_at"),
    )
    op.create_table("preferences", sa.Column("name", sa.String, primary_key=True), *_texts("value"))


def _create_audit() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False, index=True),
        sa.Column("actor", sa.String, nullable=False, index=True),
        *_texts("role", "via", "came_from"),
        sa.Column("action", sa.String, nullable=False, index=True),
        *_texts("target", "before", "after", "result", "reason", "previous_hash", "entry_hash"),
    )
    chain = op.create_table(
        "audit_chain",
        _id(),
        sa.Column("first_sequence", sa.Integer, nullable=False),
        *_texts("anchor_hash"),
        sa.Column("last_sequence", sa.Integer, nullable=False),
        *_texts("last_hash", "seal"),
    )
    empty = {"id": 1, "first_sequence": 1, "anchor_hash": NO_HASH, "last_sequence": 0, "last_hash": NO_HASH, "seal": ""}
    op.bulk_insert(chain, [empty])
    for statement in POSTGRESQL if op.get_bind().dialect.name == "postgresql" else SQLITE:
        op.execute(statement)
    op.create_table(
        "open_commands", sa.Column("id", sa.String, primary_key=True), *_texts("author_json", "command_json")
    )


def _create_runs() -> None:
    op.create_table(
        "run_records",
        _id(),
        sa.Column("name", sa.String, nullable=False, index=True),
        *_texts("recipe", "dataflow"),
        *_numbers("started_at", "last_at"),
        sa.Column("last_sequence", sa.Integer, nullable=False),
        *_texts("report_json", "folder"),
    )
    op.create_table(
        "launched_runs",
        sa.Column("name", sa.String, primary_key=True),
        *_texts("recipe", "folder", "actor"),
        *_numbers("launched_at"),
        sa.Column("pid", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("has_fleet", "ends_by_itself", "needs_admin")),
        sa.Column("limit_s", sa.Float),
        sa.Column("launch_key", sa.String),
        *_texts("launch_request"),
    )
    op.create_index("ix_launched_runs_launch_key", "launched_runs", ["launch_key"], unique=True)
    op.create_table(
        "series_names",
        _id(),
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), nullable=False),
        *_texts("subject", "value"),
        sa.UniqueConstraint("run_id", "subject", "value"),
    )
    levels = {"series_seconds": (), "series_ten_seconds": ("low", "high"), "series_five_minutes": ("low", "high")}
    for table, more in levels.items():
        op.create_table(
            table,
            sa.Column("series_id", sa.Integer, sa.ForeignKey("series_names.id"), primary_key=True, autoincrement=False),
            sa.Column("at", sa.Float, primary_key=True),
            *_numbers("number", *more),
            sqlite_with_rowid=False,
        )
    op.create_table(
        "series_rolled",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run_records.id"), primary_key=True, autoincrement=False),
        sa.Column("width_s", sa.Integer, primary_key=True, autoincrement=False),
        *_numbers("until"),
    )


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Float, nullable=False) for name in names]
