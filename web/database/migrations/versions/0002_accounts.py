"""Adds passwords, provider identities, API tokens, the audit log and preferences."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
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


def upgrade() -> None:
    """Extends users and sessions, creates the new tables."""
    op.add_column("users", sa.Column("password_hash", sa.String))
    op.add_column("users", sa.Column("identity", sa.String))
    op.add_column("users", sa.Column("disabled_at", sa.Float))
    op.create_index("ix_users_identity", "users", ["identity"], unique=True)
    op.add_column("sessions", sa.Column("came_from", sa.String, nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("browser", sa.String, nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("opened_by", sa.String, nullable=False, server_default="link"))
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("token_hash", sa.String, nullable=False, unique=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "preferences",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    _make_audit()


def _make_audit() -> None:
    texts = ("role", "via", "came_from")
    op.create_table(
        "audit_entries",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False, index=True),
        sa.Column("actor", sa.String, nullable=False, index=True),
        *(sa.Column(name, sa.String, nullable=False) for name in texts),
        sa.Column("action", sa.String, nullable=False, index=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("target", "before", "after", "result", "reason", "previous_hash", "entry_hash")
        ),
    )
    chain = op.create_table(
        "audit_chain",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("first_sequence", sa.Integer, nullable=False),
        sa.Column("anchor_hash", sa.String, nullable=False),
        sa.Column("last_sequence", sa.Integer, nullable=False),
        sa.Column("last_hash", sa.String, nullable=False),
        sa.Column("seal", sa.String, nullable=False),
    )
    op.bulk_insert(
        chain,
        [
            {
                "id": 1,
                "first_sequence": 1,
                "anchor_hash": NO_HASH,
                "last_sequence": 0,
                "last_hash": NO_HASH,
                "seal": "",
            }
        ],
    )
    for statement in POSTGRESQL if op.get_bind().dialect.name == "postgresql" else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Removes the columns and tables."""
    for table in ("audit_entries", "audit_chain", "preferences", "api_tokens"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_entries_keep()")
    op.drop_index("ix_users_identity", "users")
    for table, columns in (
        ("sessions", ("came_from", "browser", "opened_by")),
        ("users", ("password_hash", "identity", "disabled_at")),
    ):
        for column in columns:
            op.drop_column(table, column)
