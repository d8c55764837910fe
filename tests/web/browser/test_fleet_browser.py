"""Dialogs of pools and decisions in a real browser."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import running_web

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]


PATIENCE_MS = 40_000
"""Milliseconds. A busy machine must not fail the test."""


async def test_a_plan_is_previewed_in_a_dialog_and_its_decision_opens_in_one(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
    ):
        await web.until_connected()
        async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
            await page.goto(f"{web.address}/pools/eu")
            await _plan(page, fleet)
            await page.goto(f"{web.address}/decisions")
            await page.get_by_role("link", name="From 2 to 3 nodes").click()
            await expect(page.locator("dialog[open] #decision")).to_contain_text(
                "the trainer waits", timeout=PATIENCE_MS
            )
            await page.keyboard.press("Escape")
            await expect(page.locator("dialog[open]")).to_have_count(0)
            assert complaints.heard == []


async def _plan(page: Page, fleet: RunningFleet) -> None:
    form = page.locator('form[action="/pools/eu/plans"]')
    await form.locator('input[name="target"]').fill("3")
    await form.locator('input[name="reason"]').fill("the trainer waits")
    await form.get_by_role("button", name="Preview").click()
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("Resize eu: 2 to 3 nodes?", timeout=PATIENCE_MS)
    assert fleet.parts.states() == {"ready": 2}
    await dialog.get_by_role("button", name="Apply").click()
    await expect(page.locator(".flash")).to_contain_text("1 launched", timeout=PATIENCE_MS)
    assert fleet.parts.states() == {"ready": 2, "intended": 1}
