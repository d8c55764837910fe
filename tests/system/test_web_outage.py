"""A kill of the web process during a run whose pool follows the rule: the run is unaffected, and no second is missing.

`ASTRAFLOW_WEB_AWAY_S` is the length of the outage, by default 10 seconds; docs/benchmarks/web.md has figures of ten
minutes.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.reports.report import Report
from tests.system.processes import PATIENCE_S, RunningRun, assert_balanced, running
from tests.system.test_fleet import ALICE, FOLLOWING, fleet_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

AWAY_S = float(os.environ.get("ASTRAFLOW_WEB_AWAY_S", "10"))

WIDEST_GAP_S = 5.0
"""Seconds between two points of a chart in the outage; dataflow stores one a second, a busy machine skips some."""


@asynccontextmanager
async def web_of(
    run: RunningRun, directory: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """Yields the web process of a run, started apart from it, and a logged-in client; kills the process at the end."""
    facts = run.facts()
    options = ("--dataflow", facts["dataflow"], "--fleet", facts["fleet"], "--directory", str(directory))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "web", *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"ASTRAFLOW_TOKEN": run.token()},
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"ready ")
        link = (directory / "login-link").read_text()
        async with httpx.AsyncClient(base_url=link.partition("/login")[0], timeout=PATIENCE_S) as client:
            await client.get(link)
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.long  # test_smoke_recipe kills the page once
async def test_an_outage_of_the_page_has_no_effect_and_leaves_no_gap(tmp_path: Path) -> None:
    directory = tmp_path / "web"
    async with (
        running("smoke", tmp_path / "run", *FOLLOWING, limit_s=300.0 + AWAY_S) as run,
        fleet_of(run) as fleet,
    ):
        await until(fleet, lambda status: status.pools[0].nodes.get(InstanceState.READY, 0) >= 3)
        async with web_of(run, directory) as (web, client):
            first = await run.steps_more(3)
            await recorded(client, since=first.at)
            web.send_signal(signal.SIGKILL)
            await web.wait()
        gone_at = (await run.report()).at
        before, began = await run.report(), time.monotonic()
        pool = (await fleet.status()).pools[0]
        await fleet.inject_fault(pool.spec.id, share=0.3, actor=ALICE, key="drill", reason="during the outage")
        await until(fleet, lambda status: status.pools[0].nodes.get(InstanceState.READY, 0) >= pool.target)
        await asyncio.sleep(max(0.0, AWAY_S - (time.monotonic() - began)))
        after = await run.steps_more(3)

        async with web_of(run, directory) as (_, client):
            began = time.monotonic()
            seconds = await recorded(client, since=first.at, until=after.at)
            took_s = time.monotonic() - began
        assert_balanced(await run.report())
    away = [at for at in seconds if gone_at - WIDEST_GAP_S <= at]
    gap = max(later - earlier for earlier, later in itertools.pairwise(away))
    assert gap <= WIDEST_GAP_S
    assert after.streams[0].training.steps > before.streams[0].training.steps
    figures = {
        "away_s": round(after.at - gone_at),
        "steps": after.streams[0].training.steps - before.streams[0].training.steps,
        "caught_up_s": round(took_s, 1),
        "widest_gap_s": round(gap, 1),
        "points": len(away),
        "waited_share": round(waited(before, after), 4),
    }
    sys.stderr.write(json.dumps(figures) + "\n")  # printed for measurements: pytest -s


def waited(before: Report, after: Report) -> float:
    """Returns the share of the time between two reports in which the trainer waited for a batch."""
    return (after.streams[0].training.wait_s - before.streams[0].training.wait_s) / (after.at - before.at)


async def recorded(client: httpx.AsyncClient, *, since: float, until: float | None = None) -> list[float]:
    """Returns the times of a chart's points, once it has points from `since` (and up to `until`, if given)."""
    deadline, ats = time.monotonic() + PATIENCE_S, list[float]()
    while time.monotonic() < deadline:
        answer = await client.get("/api/v1/series.json", params={"chart": "reward", "range": "15m"})
        ats = [row["unix_s"] for row in answer.json()] if answer.is_success else []
        if ats and ats[0] <= since + WIDEST_GAP_S and ats[-1] >= (until or since):
            return ats
        await asyncio.sleep(0.2)
    raise AssertionError(f"the chart has no points from {since} to {until}: {ats[:1]} to {ats[-1:]}")
