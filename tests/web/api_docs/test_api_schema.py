"""Tests the API against its OpenAPI document: schemathesis sends valid and invalid requests over real HTTP."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from maintainer.fleet.ledger.ledger import open_ledger
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.postgres import separate_schema
from tests.fakes.web import running_web, shown_secret
from tests.maintainer.fleet import parts

pytestmark = pytest.mark.anyio

CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = os.environ.get("ASTRAFLOW_API_EXAMPLES", "2")
"""Requests of each kind for each address; set the variable for a longer test."""
UNLIMITED = {"reads_a_minute": 10**6, "changes_a_minute": 10**6, "exports_a_minute": 10**6}
"""Rate limits that the requests do not reach. `tests/web/middleware/test_rate_limits.py` tests the limits."""
LIMIT_S = 200.0
"""Seconds. The test takes a fraction of it; a busy machine must not fail the test."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest) -> str:
    """URL of the page's database; empty for SQLite."""
    return str(request.getfixturevalue("empty_postgres")) if request.param == "postgresql" else ""


@pytest.fixture
def fleet_ledger(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stores the ledger of the fleet beside the page's tables; in memory without a URL."""
    if not url:
        yield
        return
    ledger = open_ledger(tmp_path / "ledger", separate_schema(url, "fleet"))
    monkeypatch.setattr(parts, "memory_database", lambda: ledger)
    yield
    ledger.close()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("fleet_ledger")
@pytest.mark.parametrize("phases", ["examples,fuzzing", pytest.param("coverage", marks=pytest.mark.long)])
async def test_the_api_conforms_to_its_schema(
    phases: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)  # avoids hundreds of real launches
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    fake = FakeControlPlane(sequence=12)  # a short run: each what-if replays all of it
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address, database=url, **UNLIMITED) as web,
        web.logged_in() as admin,
    ):
        await web.until_connected()
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "st", "scope": "admin", "days": "1"}))
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
            f"{web.address}/api/v1/openapi.json",
            *("--header", f"Authorization: Bearer {token}", "--checks", "all", "--max-examples", EXAMPLES),
            *("--seed", "1", "--no-color", "--phases", phases, "--request-timeout", "10"),
            *("--suppress-health-check", "all", "--generation-database", ":memory:"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        going_on = asyncio.create_task(_go_on(fake))
        try:
            async with asyncio.timeout(LIMIT_S):
                output, _ = await program.communicate()
        finally:
            going_on.cancel()
            if program.returncode is None:
                program.kill()
                await program.wait()
    text = output.decode()
    assert program.returncode == 0, text[-12000:]
    counted = re.search(r"(\d+) generated, (\d+) passed", text)
    assert counted is not None, text[-3000:]
    assert int(counted[1]) == int(counted[2]) > 300


async def _go_on(fake: FakeControlPlane) -> None:
    """Advances the run every second."""
    while True:
        await asyncio.sleep(1)
        await fake.advance()
