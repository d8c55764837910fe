"""Work that each test would repeat, done once per session: migrations of new databases and certificates of HTTP
clients; and seeds that cost less than those of an installed plugin."""

import os
import sqlite3
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_randomly
from sqlalchemy import Engine, inspect

from astraflow.runtime import database as runtime_database


def seed_cheaply() -> None:
    """Replaces the seeders that packages register with pytest-randomly.

    `thinc` calls `torch.manual_seed` three times per test. Without a GPU this formats three stacks for each call and
    keeps them, which takes more than most tests.
    """
    pytest_randomly.entrypoint_reseeds = [_seed_torch]


def _seed_torch(seed: int) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed % 2**63)


@contextmanager
def copied_databases() -> Iterator[None]:
    """Copies a new SQLite database from the first one with the same migrations, which takes a millisecond.

    All other databases are migrated: PostgreSQL, and those with tables.
    """
    migrate = runtime_database.migrate
    templates: dict[Path, sqlite3.Connection] = {}

    def migrate_or_copy(engine: Engine, migrations: Path) -> None:
        if engine.dialect.name != "sqlite" or inspect(engine).get_table_names():
            migrate(engine, migrations)
            return
        if migrations not in templates:
            migrate(engine, migrations)
            template = sqlite3.connect(":memory:", check_same_thread=False)
            with _connection(engine) as source:
                source.backup(template)
            templates[migrations] = template
            return
        with _connection(engine) as target:
            templates[migrations].backup(target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime_database, "migrate", migrate_or_copy)
        yield
    for template in templates.values():
        template.close()


@contextmanager
def _connection(engine: Engine) -> Iterator[sqlite3.Connection]:
    with closing(engine.raw_connection()) as pooled:
        connection = pooled.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        yield connection


@contextmanager
def shared_certificates() -> Iterator[None]:
    """Loads the certificates of authorities once: each client of `httpx` loads them, also for plain HTTP (15 ms)."""
    from httpx import _config
    from httpx._transports import default

    create = _config.create_ssl_context

    @cache
    def usual(file: str | None, folder: str | None) -> ssl.SSLContext:
        """file, folder: certificates that the environment names, which `create` loads."""
        return create()

    def create_or_share(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None and trust_env:
            return usual(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        return create(verify=verify, cert=cert, trust_env=trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "create_ssl_context", create_or_share)
        yield
