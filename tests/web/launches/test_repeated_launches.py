"""Launches that are requested again with the same idempotency key after a failure: one run per key."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.client.local_runs import find_process
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.folders.run_folders import RunFolder
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.web.launches.test_launching_fleets import page_of
from web.database.db import Database

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

UNAVAILABLE = Unavailable("cannot reach the database: it is down; start it", code="database.unavailable")


class CountingLauncher(FakeLauncher):
    """Records the folders of the started processes."""

    started: list[Path]
    failures: list[Exception]
    """Raised by the next starts, in order."""

    @staticmethod
    async def _start_process(folder: RunFolder, argv: Sequence[str]) -> int:
        if CountingLauncher.failures:
            raise CountingLauncher.failures.pop()
        CountingLauncher.started.append(folder.path)
        return await FakeLauncher._start_process(folder, argv)


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of the started processes."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", CountingLauncher)
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    CountingLauncher.started, CountingLauncher.failures = [], []
    return CountingLauncher.started


async def launch(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    """Launches `smoke` with the same key each time."""
    content = {"recipe": "smoke", "reason": "a look", **body}
    return await client.post("/api/v1/launches", json=content, headers={"Idempotency-Key": "one"})


async def names(client: httpx.AsyncClient) -> list[str]:
    """Returns the names of the listed launches."""
    return [item["name"] for item in (await client.get("/api/v1/launches")).json()["items"]]


async def audited_runs(client: httpx.AsyncClient) -> list[str]:
    """Returns the facts of the launches in the audit log."""
    return [item["after"] for item in (await client.get("/api/v1/audit?action=run.launch")).json()["items"]]


async def test_a_launch_that_cannot_be_recorded_first_starts_nothing_and_can_be_repeated(
    started: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page_of(tmp_path) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Database, "write_sync", _fail)
            assert (await launch(client)).status_code == 503
        assert started == []
        assert await audited_runs(client) == []
        for _ in range(2):
            repeated = await launch(client)
            assert repeated.status_code == 201
            assert await names(client) == [repeated.json()["name"]] == [path.name for path in started]
        assert len(await audited_runs(client)) == 1


async def test_a_repeated_launch_after_a_restart_of_the_page_returns_the_same_run(
    started: list[Path], tmp_path: Path
) -> None:
    async with page_of(tmp_path) as (_, client):
        name = (await launch(client)).json()["name"]
    async with page_of(tmp_path) as (_, client):
        assert (await launch(client)).json()["name"] == name
        other = await launch(client, limit_s=60)
        assert (other.status_code, other.json()["code"]) == (409, "request.key_reused")
        assert await names(client) == [name] == [path.name for path in started]


async def test_a_launch_whose_process_id_is_not_stored_is_listed_and_not_started_again(
    started: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page_of(tmp_path) as (_, client):
        with monkeypatch.context() as patch:
            real_start = CountingLauncher._start_process

            async def start_and_lose_the_database(folder: RunFolder, argv: Sequence[str]) -> int:
                pid = await real_start(folder, argv)
                patch.setattr(Database, "write_sync", _fail)
                return pid

            patch.setattr(CountingLauncher, "_start_process", staticmethod(start_and_lose_the_database))
            assert (await launch(client)).json()["name"] == started[0].name
        assert await names(client) == [path.name for path in started]
        assert (await launch(client)).json()["name"] == started[0].name
        assert len(started) == 1


def _fail(*_: object) -> None:
    raise UNAVAILABLE


async def test_a_key_of_a_launch_that_could_not_start_can_be_used_again(started: list[Path], tmp_path: Path) -> None:
    CountingLauncher.failures.append(InvalidInput("cannot start the run: no space", code="launch.start_failed"))
    async with page_of(tmp_path) as (_, client):
        assert (await launch(client)).status_code == 409
        assert await names(client) == []
        assert (await launch(client)).status_code == 201
        assert await names(client) == [path.name for path in started]


def test_a_process_without_a_stored_id_is_found_by_its_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    process = subprocess.Popen(["/bin/sh", "-c", "read line; exit 0", "sh", str(folder.path)], stdin=subprocess.PIPE)
    try:
        running = find_process(folder, set())
        assert running is not None
        assert running.pid == process.pid
    finally:
        process.communicate()
    assert find_process(folder, set()) is None
