"""The commands of docs/how-to/upgrade.md for PostgreSQL restore dumps."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url

from maintainer.fleet.ledger.ledger import open_ledger
from tests.fakes.postgres import PROGRAMS, postgres_server
from tests.system.processes import ROOT
from web.database.db import open_database

COMPOSE = """#!/bin/sh
set -e
case "$2" in
stop | start) echo "$2" >> "$COMMANDS" ;;
exec) [ "$3 $4" = "-T database" ]; shift 4; exec "$@" ;;
*) exit 64 ;;
esac
"""
"""`docker compose` with the database server of the test as the service `database`."""

ROWS = {
    "page": ("web/database/migrations", "insert into users (id, name, role, created_at) values (1, 'ada', 'admin', 5)"),
    "fleet": (
        "maintainer/fleet/ledger/migrations",
        "insert into fleet_decisions (ordinal, at, kind, pool, actor, role, reason, cause, severity, values_json, key, "
        "findings_json) values (1, 7.5, 'launch_failed', 'eu', 'ada', 'rule', 'boot', '', 'info', '{}', '', '[]')",
    ),
}
"""Migrations of each database, and a row in its tables."""


def documented() -> tuple[str, str]:
    """Returns the commands that save the databases, and those that restore them."""
    page = (ROOT / "docs/how-to/upgrade.md").read_text()
    section = page[page.index("\n## PostgreSQL\n") :]
    save, restore, *_ = re.findall(r"^```\n(.*?)^```", section, flags=re.M | re.S)
    return save, restore


def fill(url: URL, name: str) -> None:
    """Creates the tables with one row."""
    migrations, row = ROWS[name]
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(ROOT / migrations))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.execute(text(row))
    engine.dispose()


def names(url: URL, query: str) -> list[str]:
    """Executes a statement; returns the values of its first column."""
    engine = create_engine(url)
    with engine.begin() as connection:
        rows = list(connection.execute(text(query)).scalars())
    engine.dispose()
    return rows


@pytest.mark.needs("postgresql")
def test_dumps_replace_later_databases(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text(COMPOSE)
    (programs / "docker").chmod(0o755)
    with postgres_server() as address:
        server = make_url(address).set(username="astraflow")
        environment = {
            **os.environ,
            "BACKUP": str(tmp_path),
            "COMMANDS": str(tmp_path / "commands"),
            "PATH": f"{programs}:{PROGRAMS}:{os.environ['PATH']}",
            "PGHOST": str(server.host),
            "PGPORT": str(server.port),
        }
        page, fleet = (server.set(drivername="postgresql+psycopg", database=name) for name in ("page", "fleet"))

        def run(commands: str) -> None:
            subprocess.run(["sh", "-ec", commands], env=environment, check=True, timeout=120)

        def opened() -> tuple[list[str], list[str]]:
            """Opens both databases as the services do; returns the names of users and of authors of decisions."""
            open_database(tmp_path / "web", str(server.set(database="page"))).close()
            open_ledger(tmp_path / "fleet", str(server.set(database="fleet"))).close()
            return names(page, "select name from users"), names(fleet, "select actor from fleet_decisions")

        run("createuser --username web --superuser astraflow")
        run(f"psql --username astraflow --dbname postgres --quiet --file {ROOT / 'deploy/compose/databases.sql'}")
        fill(page, "page")
        fill(fleet, "fleet")
        save, restore = documented()
        run(save)
        assert opened() == (["ada"], ["ada"])
        names(page, "update users set name = 'bob' returning name")
        assert opened() == (["bob"], ["ada"])
        run(restore)
        assert opened() == (["ada"], ["ada"])
    assert (tmp_path / "commands").read_text().split() == ["stop", "start"]
