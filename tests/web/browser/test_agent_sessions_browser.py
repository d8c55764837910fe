"""A session of an agent, pushed through a real dataflow, in a browser: branches, model calls, live sessions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.rollouts.trajectories import Episode
from tests.dataflow.running import TOKEN, Service, facts, running, sessions_config
from tests.fakes.agent_session import agent_trajectories, live_session
from tests.fakes.browser import logged_in_page
from tests.fakes.web import RunningWeb, running_web

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240)]

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@asynccontextmanager
async def agents_run(folder: Path) -> AsyncIterator[tuple[Service, RunningWeb]]:
    """Serves a run with one group of agents' sessions, and its pages; a node reports two live sessions."""
    async with running(folder / "run", sessions_config(lease_s=600.0)) as service:
        node = (await service.nodes.join(facts("node-a"))).node
        lease = await service.nodes.lease(node, 2, wait_s=5)
        episodes = [
            Episode(
                task=task.id, node=node, trajectories=agent_trajectories(reward=float(task.member)), duration_s=15.0
            )
            for task in lease.tasks
        ]
        assert set(await service.nodes.push(node, episodes)) == {"accepted"}
        await service.nodes.heartbeat(status(node))
        async with running_web(folder / "web", service.address, token=TOKEN) as web:
            await web.until_connected()
            yield service, web


def status(node: NodeId, *, age_s: float = 312.0) -> NodeStatus:
    sessions = (
        live_session("train-solver:8/0", age_s=20.0),
        live_session("train-solver:7/1", age_s=age_s, idle_s=250.0, waiting_calls=0),
    )
    return NodeStatus(node=node, running=(), versions={}, gauges={"agent_sessions": len(sessions)}, sessions=sessions)


async def violations(page: Page) -> list[tuple[str, str]]:
    """Returns serious violations of accessibility."""
    results = await Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        (violation["id"], node["html"][:200])
        for violation in results.response["violations"]
        for node in violation["nodes"][:2]
        if violation["impact"] in ("serious", "critical")
    ]


async def until_recorded(page: Page, address: str) -> None:
    """Opens the first page of a run as soon as the run is recorded."""
    for _ in range(200):
        answer = await page.goto(address)
        assert answer is not None
        if answer.ok:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the run was not recorded")


async def test_a_session_is_read_from_its_branches_to_the_requests_of_its_calls(
    chromium: Browser, tmp_path: Path
) -> None:
    async with agents_run(tmp_path) as (service, web):
        (branch,) = (await service.control.trajectories(TrajectoryQuery(role="agent", limit=1))).trajectories
        async with logged_in_page(chromium, web.login_url) as (page, _complaints, context):
            base = f"{web.address}/runs/1/trajectories"
            await until_recorded(page, f"{base}?call=refused")
            await expect(page.locator("a.member-reward")).to_have_count(
                2
            )  # the first trajectory of each of the two members
            await expect(page.locator("select[name=call]")).to_have_value("refused")

            await page.goto(f"{base}/{branch.ordinal}")
            await expect(page.locator("html.has-script")).to_be_attached()
            tree = page.locator(".episode > li")
            await expect(tree).to_have_count(3)
            await expect(tree.nth(1)).to_contain_text("branches from agent (1) in turn 1")
            await expect(tree.locator("rect[data-kind=shared]")).to_have_count(1)
            await expect(page.locator(".turn[data-kind=shared]")).to_contain_text("read_file")

            rows = page.locator(".calls .call")
            await expect(rows).to_have_count(8)
            await page.locator(".turn-call").last.click()
            opened = page.locator(":target.call")
            await opened.locator("summary").focus()
            await page.keyboard.press("Enter")
            await expect(opened.locator(".call-body")).to_have_count(2)
            await expect(opened.locator("pre").first).to_contain_text('"messages": [')
            await rows.nth(0).locator("summary").click()
            await expect(rows.nth(0).locator(".call-body")).to_have_count(2)
            await rows.nth(0).locator(".call-turn a").first.click()
            await page.wait_for_url(lambda url: url.endswith("#turn-1"))
            await expect(page.locator("#turn-1")).to_be_visible()

            address = f"{base}/{branch.ordinal}"
            findings = []
            for theme in ("light", "dark"):
                await context.add_cookies([{"name": "astraflow_theme", "value": theme, "url": web.address}])
                for path in (f"{address}?open_call=6", f"{address}?calls=refused", f"{web.address}/dataflow"):
                    await page.goto(path)
                    findings += [(path, theme, *violation) for violation in await violations(page)]
            assert not findings
            await page.set_viewport_size({"width": 360, "height": 800})
            for path in (f"{address}?open_call=6", f"{web.address}/dataflow"):
                await page.goto(path)
                assert await page.evaluate(OVERFLOW) == 0, path


async def test_live_sessions_are_listed_by_age_and_change_with_the_reports(chromium: Browser, tmp_path: Path) -> None:
    async with agents_run(tmp_path) as (service, web):
        (node,) = (await service.control.report()).nodes
        async with logged_in_page(chromium, web.login_url) as (page, _complaints, _):
            await page.goto(f"{web.address}/dataflow")
            rows = page.locator("section:has(> .card-head > #live-sessions) tbody tr")
            await expect(rows.locator("th")).to_have_text(["train-solver:7/1", "train-solver:8/0"])
            await expect(rows.first.locator("[data-tone=warn]")).to_have_count(1)
            await expect(rows.first.locator("a")).to_have_attribute("href", f"/nodes/{node.id}")

            await service.nodes.heartbeat(replace(status(node.id), sessions=(), gauges={"agent_sessions": 0}))
            await expect(rows).to_have_count(0, timeout=20_000)
            await page.goto(f"{web.address}/nodes/{node.id}")
            await expect(page.locator("#live-sessions")).to_be_visible()
