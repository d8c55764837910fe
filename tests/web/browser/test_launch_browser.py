"""Launch form in a real browser: never ready before the current values were checked, text and fields in step."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.web import running_web

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.browser, pytest.mark.timeout(240)]

STEPS = "[name='set.stop.steps']"


class HeldChecks:
    """Checks of the form whose answers wait for the test."""

    def __init__(self) -> None:
        self.released, self.asked = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def handle(self, route: Route) -> None:
        """Answers a check once it is released."""
        self.asked.set()
        await self.released.wait()
        await (route.fulfill(status=500, body="broken") if self.fails else route.continue_())


async def test_the_form_is_never_ready_before_its_values_were_checked(
    tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with (
        running_web(tmp_path / "web", "") as web,
        logged_in_page(chromium, web.login_url) as (page, _, _),
    ):
        checks = HeldChecks()
        await page.route("**/runs/new/preview", checks.handle)
        await page.goto(f"{web.address}/runs/new?recipe=smoke")
        preview, title, text = page.locator("#preview"), page.locator("#preview-title"), page.locator("#recipe-text")
        await expect(preview).to_have_attribute("data-state", "ready")

        await page.fill(STEPS, "many")
        assert await title.text_content() == "Checking…", "at once, before the check is sent"
        checks.released.set()
        await expect(title).to_have_text("1 problem")
        await expect(page.locator(f".setting:has({STEPS}) .field-problem")).to_contain_text("'many'")
        await expect(page.locator(STEPS)).to_have_attribute("aria-invalid", "true")

        checks.released.clear()
        checks.asked.clear()
        await page.fill(STEPS, "7")
        await checks.asked.wait()
        await page.fill(STEPS, "fewer")  # the answer to 7 would be that it is ready
        checks.released.set()
        await expect(title).to_have_text("1 problem")
        await expect(page.locator(f".setting:has({STEPS}) .field-problem")).to_contain_text("'fewer'")

        checks.fails = True
        await page.fill(STEPS, "8")
        await expect(preview).to_have_attribute("data-state", "unchecked")
        checks.fails = False
        await page.fill(STEPS, "9")
        await expect(preview).to_have_attribute("data-state", "ready")
        await expect(text).to_have_value(re.compile("steps = 9"))

        await text.fill((await text.input_value()).replace("steps = 9", "steps = 11 # mine"))
        assert await title.text_content() == "Checking…"
        await expect(preview).to_have_attribute("data-state", "ready")
        await expect(page.locator(STEPS)).to_have_value("11")
        await text.fill("seed = = 1")
        await expect(page.locator("#editor-problems li")).to_have_count(1)
        await expect(page.locator("#editor-lines [data-tone=bad]")).to_have_text("1")
