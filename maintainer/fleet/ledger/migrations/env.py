"""Entry point of Alembic: migrates the connection passed by `astraflow.runtime.database`."""

from alembic import context
from sqlmodel import SQLModel

from maintainer.fleet.ledger import tables

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()

__all__ = ["tables"]
