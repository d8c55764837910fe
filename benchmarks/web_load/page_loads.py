"""Load times of the main pages in Chromium, cold and warm: `python -m benchmarks.web_load.page_loads`.

This process serves the pages over a synthetic run with 1,000 nodes, a fleet service, and a recorded run of 1,000 steps.
A cold load has an empty cache; warm is the median of three loads after it. Bytes are those of the network, compressed.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page
from rich.console import Console
from rich.table import Table

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.runtime.folders.run_folders import HOME, runs_folder
from tests.fakes.browser import browser
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.synthetic_run import STEPS_PER_S, SyntheticRun
from tests.fakes.web import running_web

WARM_LOADS = 3
QUIET_S = 0.4
PAGES = (
    "/", "/runs", "/runs/1", "/runs/1/charts/entropy", "/runs/1/trajectories", "/runs/compare?run=1&run=2", "/runs/new",
    "/pools", "/nodes", "/nodes/map", "/dataflow", "/weights", "/decisions", "/alerts", "/maintainer", "/audit",
    "/settings",
)  # fmt: skip
"""Main pages; /runs/1 is the recorded run."""

TIMES = """() => {
    const [page] = performance.getEntriesByType("navigation");
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const all = [page, ...performance.getEntriesByType("resource")];
    const sum = (name, of) => of.reduce((total, entry) => total + entry[name], 0);
    const scripts = all.filter(({ name }) => name.split("?")[0].endsWith(".js"));
    return {
      paint: paint?.startTime ?? 0, complete: page.domComplete, sent: sum("transferSize", all),
      decoded: sum("decodedBodySize", all), scripts: sum("decodedBodySize", scripts),
    };
}"""


async def _measure(nodes: int, steps: int) -> Table:
    table = Table("page", "FCP cold / warm, ms", "complete cold / warm, ms", "sent, kB", "decoded, kB", "scripts, kB")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        os.environ[HOME] = str(directory / "home")
        _recorded_run(steps)
        fake = FakeControlPlane(
            SyntheticRun(nodes=tuple(f"node-{index}" for index in range(nodes))), sequence=150, history=60
        )
        async with (
            fake.serving() as dataflow,
            running_fleet(directory / "fleet", nodes=3) as fleet,
            running_web(directory / "web", dataflow, fleet=fleet.address) as web,
            browser() as chromium,
        ):
            await web.until_connected()
            context = await chromium.new_context()
            page = await context.new_page()
            await page.goto(web.login_url)
            cookies = await context.cookies()
            for path in PAGES:
                cold, warm = await _loads(chromium, cookies, web.address + path)
                table.add_row(
                    path,
                    f"{cold['paint']:.0f} / {warm['paint']:.0f}",
                    f"{cold['complete']:.0f} / {warm['complete']:.0f}",
                    *(f"{cold[name] / 1000:.0f}" for name in ("sent", "decoded", "scripts")),
                )
    return table


def _recorded_run(steps: int) -> None:
    """Creates the folder of an ended run with this many steps, its last minute of reports, and groups."""
    run, seconds = SyntheticRun(run="recorded-0001", began_at=1000.0), round(steps / STEPS_PER_S) + 5
    query = TrainingStepQuery(policy=PolicyId("solver"))
    archive = recorded_archive(run_folder(runs_folder() / "recorded", run=run.run))
    reports = tuple(run.report(second, is_history=True) for second in range(seconds - 60, seconds))
    fill(archive, groups=200, reports=reports, steps=run.training_steps(seconds, query).steps)
    archive.close()


async def _loads(chromium: Browser, cookies: Any, address: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Returns the times of the first load in a new context, and the medians of the following ones."""
    context = await chromium.new_context(viewport={"width": 1440, "height": 900})
    await context.add_cookies(cookies)
    page = await context.new_page()
    cold = await _load(page, address)
    warm = [await _load(page, address) for _ in range(WARM_LOADS)]
    await context.close()
    return cold, {name: statistics.median(load[name] for load in warm) for name in cold}


async def _load(page: Page, address: str) -> dict[str, float]:
    """Returns the figures of a load once no file has arrived for a while: scripts of charts are loaded after it."""
    await page.goto(address, wait_until="load")
    before: dict[str, float] = {}
    while True:  # the policy of the page forbids the strings that a wait of Playwright evaluates
        times: dict[str, float] = await page.evaluate(TIMES)
        if times["paint"] and times == before:
            return times
        before = times
        await asyncio.sleep(QUIET_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    table = asyncio.run(_measure(chosen.nodes, chosen.steps))
    table.title = f"{chosen.nodes:,} nodes, {chosen.steps:,} steps; load {load:.1f} before"
    Console(width=150).print(table)
