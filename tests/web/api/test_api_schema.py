"""The API against its own document: schemathesis sends what it allows and what it forbids, over real HTTP."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.web import running_web, shown_secret

pytestmark = pytest.mark.anyio

CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = os.environ.get("ASTRAFLOW_API_EXAMPLES", "8")
"""Requests of each kind for each address; a longer run is asked for by hand."""
UNLIMITED = {"reads_a_minute": 10**6, "changes_a_minute": 10**6, "exports_a_minute": 10**6}
"""Its requests would meet the bounds of one caller, which `tests/web/door/test_limits.py` looks at."""
LIMIT_S = 200.0
"""It takes a fraction of that; a busy machine is no failure."""


@pytest.mark.timeout(240)
async def test_the_api_does_what_its_document_says_whatever_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)  # hundreds of launches are not for this machine
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    fake = FakeControlPlane(sequence=12)  # a young run: what-ifs are played over all of it
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address, **UNLIMITED) as web,
        web.logged_in() as admin,
    ):
        await web.until_fed()
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "st", "scope": "admin", "days": "1"}))
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
            f"{web.address}/api/v1/openapi.json",
            *("--header", f"Authorization: Bearer {token}", "--checks", "all", "--max-examples", EXAMPLES),
            *("--seed", "1", "--no-color", "--phases", "examples,coverage,fuzzing", "--request-timeout", "10"),
            *("--suppress-health-check", "all", "--generation-database", ":memory:"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        going_on = asyncio.create_task(_go_on(fake))
        try:
            async with asyncio.timeout(LIMIT_S):
                said, _ = await program.communicate()
        finally:
            going_on.cancel()
            if program.returncode is None:
                program.kill()
                await program.wait()
    text = said.decode()
    assert program.returncode == 0, text[-12000:]
    counted = re.search(r"(\d+) generated, (\d+) passed", text)
    assert counted is not None, text[-3000:]
    assert int(counted[1]) == int(counted[2]) > 500


async def _go_on(fake: FakeControlPlane) -> None:
    """A run that is heard."""
    while True:
        await asyncio.sleep(1)
        await fake.advance()
