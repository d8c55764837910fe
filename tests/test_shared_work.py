"""Work that tests share gives the results of the original work."""

import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import pytest_randomly
import torch

from tests import shared_work
from web.database.db import DATABASE, open_database


def test_a_copied_database_equals_a_migrated_one(tmp_path: Path) -> None:
    with shared_work.copied_databases():
        open_database(tmp_path / "migrated").close()
        open_database(tmp_path / "copied").close()
    dumps = []
    for name in ("migrated", "copied"):
        with closing(sqlite3.connect(tmp_path / name / DATABASE)) as connection:
            dumps.append(list(connection.iterdump()))
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert dumps[0] == dumps[1]
    assert any("alembic_version" in line for line in dumps[1])


def test_a_seed_determines_the_numbers_of_torch() -> None:
    seeds = (7, 7, 8)
    numbers = []
    for seed in seeds:
        shared_work._seed_torch(seed)
        numbers.append(torch.rand(3).tolist())
    assert numbers[0] == numbers[1] != numbers[2]


def test_the_seeder_of_torch_is_the_only_one_of_packages() -> None:
    assert pytest_randomly.entrypoint_reseeds == [shared_work._seed_torch]


def test_http_clients_share_certificates_unless_the_environment_names_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def context() -> object:
        with httpx.Client() as client:
            return client._transport._pool._ssl_context  # type: ignore[attr-defined]  # httpx shows it nowhere

    shared = context()
    assert context() is shared
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert context() is not shared
