"""The official TypeScript client of MCP, against `astraflow mcp` over stdio."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from maintainer.agent.tools.registry import TOOLS
from tests.agents.clients.environments import NODE
from tests.fakes.control_plane import TOKEN
from tests.maintainer.agent.test_service import planes
from tests.maintainer.mcp.test_server import allow

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(120)]

WALK = Path(__file__).parent / "programs" / "mcp_walk.mjs"


async def test_the_typescript_client_lists_reads_and_is_refused(tmp_path: Path) -> None:
    assert NODE.program("")
    script = NODE.folder / WALK.name  # beside the packages that it imports
    shutil.copy(WALK, script)
    async with planes(tmp_path) as (dataflow, fleet):
        await allow(fleet)
        server = (sys.executable, "-m", "maintainer", "mcp", "--dataflow", dataflow, "--fleet", fleet)
        process = await asyncio.create_subprocess_exec(
            *("node", str(script), *server, "--directory", str(tmp_path / "mcp")),
            env={**os.environ, "ASTRAFLOW_TOKEN": TOKEN},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    walk = json.loads(output)
    assert process.returncode == 0
    assert walk == {"tools": list(TOOLS), "pools": 1, "faults": [], "refused": [True, "bad_arguments"]}
