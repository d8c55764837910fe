"""Migrates a database to the tables of this release. Only this module imports Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

_LOCK = 0x617374726166  # arbitrary, but unique to AstraFlow


def migrate(engine: Engine, migrations: Path) -> None:
    """Runs the missing migrations of a folder, whose `env.py` takes its connection from the attributes."""
    config = Config()
    config.set_main_option("script_location", str(migrations))
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # one process migrates, the others wait for it; SQLite locks anyway
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
