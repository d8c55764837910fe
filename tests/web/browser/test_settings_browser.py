"""Provider tests in a real browser: the result appears in the page without a reload."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import running_web

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

PATIENCE_MS = 40_000
"""Milliseconds. A busy machine must not fail the test."""


async def test_a_preflight_check_by_keyboard_is_shown_in_place_and_after_a_reload(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=1) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
    ):
        await web.until_connected()
        async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
            await page.goto(f"{web.address}/settings")
            section = page.locator("#providers")
            button = section.get_by_role("button", name="Run preflight check cloud")
            await expect(button).to_be_visible(timeout=PATIENCE_MS)  # appears once the fleet service has answered
            await expect(section).to_contain_text("Not checked yet")
            await page.evaluate("window.isSamePage = true")
            await button.focus()
            await page.keyboard.press("Enter")
            await expect(section).to_contain_text("All 3 checks passed", timeout=PATIENCE_MS)
            await expect(section).to_contain_text("a small machine would be started")
            assert await page.evaluate("window.isSamePage"), "the page was not reloaded"
            await expect(button).to_be_focused()
            await expect(section.locator("time")).to_have_text(re.compile("now|ago"))
            assert fleet.parts.states() == {"ready": 1}
            moment = await section.locator("time").get_attribute("title")
            fleet.parts.clock.advance(3600.0)
            await button.press("Enter")
            await expect(section.locator("time")).not_to_have_attribute("title", moment or "", timeout=PATIENCE_MS)
            await page.reload()
            await expect(section).to_contain_text("All 3 checks passed")
            assert complaints.heard == []


async def test_a_preflight_check_works_without_scripts(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet") as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
    ):
        await web.until_connected()
        async with logged_in_page(chromium, web.login_url, java_script_enabled=False) as (page, _, _):
            button = page.locator("#providers").get_by_role("button", name="Run preflight check cloud")
            for _ in range(40):
                await page.goto(f"{web.address}/settings")
                if await button.count():
                    break
            await button.click()
            await expect(page.locator(".flash")).to_contain_text("Cloud: all 3 checks passed", timeout=PATIENCE_MS)
            await expect(page.locator("#providers")).to_contain_text("All 3 checks passed")
