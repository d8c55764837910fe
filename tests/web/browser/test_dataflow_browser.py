"""The dataflow diagram in a real browser: it updates without a reload, and dialogs change its filters."""

import pytest
from playwright.async_api import expect

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

PATIENCE_MS = 40_000
"""Milliseconds. A busy machine must not fail the test."""


async def test_the_diagram_updates_without_a_reload_and_keeps_the_focus(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with browser() as chromium, logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await page.goto(f"{web.address}/dataflow")
        issued = page.locator(".stage[data-kind=prompts] .stage-count")
        before = await issued.text_content()
        await page.evaluate("document.body.dataset.same = 'page'")
        await page.get_by_role("link", name="Change the sampler of policy solver").focus()
        async with page.expect_response("**/dataflow/live?over=run", timeout=PATIENCE_MS):
            await fake.advance(5)
        await expect(issued).not_to_have_text(before or "", timeout=PATIENCE_MS)
        assert await page.evaluate("document.body.dataset.same") == "page"
        assert await page.evaluate("document.activeElement.ariaLabel") == "Change the sampler of policy solver"
        assert complaints.heard == []


async def test_a_filter_is_turned_off_in_a_dialog_and_the_page_fits_360_pixels(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    size = {"width": 360, "height": 740}
    async with browser() as chromium, logged_in_page(chromium, web.login_url, viewport=size) as (page, complaints, _):
        for path in ("/weights", "/flows/train/plugins", "/dataflow"):
            await page.goto(f"{web.address}{path}")
            assert await page.evaluate("document.documentElement.scrollWidth") == 360, path
        await page.get_by_role("link", name="Change the filter of flow train").first.click()
        dialog = page.get_by_role("dialog", name="Change the plugins of flow train")
        await dialog.get_by_role("checkbox", name="On").first.uncheck()
        await dialog.get_by_label("Reason").fill("too strict")
        await dialog.get_by_role("button", name="Plan the change").click()
        await expect(page.locator(".flash")).to_contain_text("changes with the next version", timeout=PATIENCE_MS)
        assert [(change.filters, change.reason) for change in fake.changes] == [
            (({"kind": "length", "max_share": 0.5},), "too strict")
        ]
        assert complaints.heard == []
