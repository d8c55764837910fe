"""Alembic environment: migrates the connection passed by `web.database.db`."""

from alembic import context
from sqlmodel import SQLModel

from web.database import tables

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()

__all__ = ["tables"]
