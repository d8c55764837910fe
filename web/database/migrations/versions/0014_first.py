"""Creates the tables as they are declared. The number is that of their last draft, whose databases it admits.

With the first release, the tables are written out here, and a changed table is the next migration.
"""

from alembic import op
from sqlmodel import SQLModel

from web.database.tables import AuditChain, own_tables

revision = "0014"
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


def upgrade() -> None:
    """Creates the tables, the empty chain of the audit log, and the triggers that keep its entries."""
    connection = op.get_bind()
    SQLModel.metadata.create_all(connection, tables=own_tables())
    empty = AuditChain(id=1, first_sequence=1, anchor_hash=NO_HASH, last_sequence=0, last_hash=NO_HASH, seal="")
    op.bulk_insert(own_tables()[0].metadata.tables["audit_chain"], [empty.model_dump()])
    for statement in POSTGRESQL if connection.dialect.name == "postgresql" else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    """Drops the tables."""
    SQLModel.metadata.drop_all(op.get_bind(), tables=own_tables())
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_entries_keep()")
