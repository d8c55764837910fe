"""The maintainer page in a real browser: dialogs decide proposals, also on a phone; axe finds nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from tests.fakes import maintainer
from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import running_web
from tests.maintainer.fleet.parts import ALICE, POOL

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.long]

PATIENCE_MS = 40_000
"""Milliseconds. A busy machine must not fail the test."""
PHONE = {"width": 360, "height": 740}


async def test_a_proposal_is_decided_on_a_phone_without_accessibility_findings(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        logged_in_page(chromium, web.login_url, viewport=PHONE) as (page, _, context),
    ):
        await web.until_connected()
        await _tell(plane)
        for theme in ("light", "dark"):
            await context.add_cookies([{"name": "astraflow_theme", "value": theme, "url": web.address}])
            for path in ("/maintainer", "/maintainer/transcript"):
                await page.goto(web.address + path)
                await _is_accessible(page, f"{path} {theme}")
        await page.goto(f"{web.address}/maintainer")
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], (
            "the page scrolls horizontally"
        )
        await page.get_by_role("link", name="Decide").click()
        dialog = page.locator("dialog[open]")
        await dialog.get_by_role("button", name="Reject").click()
        assert await dialog.locator("input:invalid").count() == 1, "without a reason the dialog stays open"
        await expect(dialog).to_contain_text("Resize eu: 2 to 5 nodes?", timeout=PATIENCE_MS)
        await _is_accessible(page, "the dialog")
        assert fleet.parts.states() == {"ready": 2}
        await dialog.get_by_role("button", name="Approve").click()
        await expect(page.locator(".flash")).to_contain_text("3 launched", timeout=PATIENCE_MS)
        assert fleet.parts.states() == {"ready": 2, "intended": 3}


async def test_the_page_updates_and_keeps_open_details_and_typed_text(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        logged_in_page(chromium, web.login_url) as (page, complaints, _),
    ):
        await web.until_connected()
        await plane.send_maintainer_heartbeat(maintainer.status())
        await maintainer.keep(plane, maintainer.transcript())
        await page.goto(f"{web.address}/maintainer")
        await page.locator('#mode input[name="reason"]').fill("half a sen")
        await page.locator(".step summary").first.click()
        await expect(page.locator("#waiting-title")).to_have_text("No proposal waits for approval")
        await maintainer.propose(plane, POOL, 4)
        await expect(page.locator("#waiting-title")).to_have_text("1 proposal waits for approval", timeout=PATIENCE_MS)
        await expect(page.locator('#mode input[name="reason"]')).to_have_value("half a sen")
        await expect(page.locator(".step details[open]")).to_have_count(1)
        await expect(page.locator(".proposal-clock time")).to_contain_text("min", timeout=PATIENCE_MS)
        assert complaints.heard == []


async def _tell(plane: FleetPlaneClient) -> None:
    """Sends a maintainer heartbeat, a transcript and proposals to the fleet service."""
    old = replace(maintainer.EVALUATION, is_current=False)
    status = maintainer.status(problems=("the day's budget is spent: tokens",), evaluation=old, live=maintainer.live())
    await plane.send_maintainer_heartbeat(status)
    await maintainer.keep(plane, maintainer.transcript(wakes=2))
    refused = await maintainer.propose(plane, POOL, 6)
    await plane.reject(refused.plan.id, actor=ALICE, key="no", reason="not today")
    await maintainer.propose(plane, POOL, 5)


async def _is_accessible(page: Page, where: str) -> None:
    """Asserts that axe has no serious or critical finding."""
    violations = (await Axe().run(page)).response["violations"]
    grave = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
    assert grave == [], (
        f"{where}: {[(violation['id'], [node['html'] for node in violation['nodes']][:3]) for violation in grave]}"
    )
