"""Creates the tables as they are declared. The number is that of their last draft, whose databases it admits.

With the first release, the tables are written out here, and a changed table is the next migration.
"""

from alembic import op
from sqlmodel import SQLModel

from maintainer.fleet.ledger.tables import own_tables

revision = "0011"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables."""
    SQLModel.metadata.create_all(op.get_bind(), tables=own_tables())


def downgrade() -> None:
    """Drops the tables."""
    SQLModel.metadata.drop_all(op.get_bind(), tables=own_tables())
