"""What people do all day, without a mouse: nothing here but keys."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.web.walk import House, house

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PATIENCE_MS = 40_000
"""A busy machine is no failure."""

FOCUSED = "document.activeElement.innerText?.trim() || document.activeElement.name || ''"
MOST_ROWS = 10
MOST_TABS = 80
_LAUNCHED = re.compile("/launches/")


async def test_every_daily_task_works_with_keys_alone(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with (
        house(tmp_path, fake, is_launched=False) as walked,
        browser() as chromium,
        logged_in_page(chromium, walked.web.address + "/login") as (page, complaints, context),
    ):
        cookies = [{"name": n, "value": v, "url": walked.web.address} for n, v in walked.admin.cookies.items()]
        await context.add_cookies(cookies)  # type: ignore[arg-type] # as it takes them
        await page.goto(walked.web.address)
        await _find_a_run(page)
        await _open_a_decision(page)
        await _plan_a_resize(page, walked)
        await _drain_a_node(page, fake)
        await _pause_a_flow(page, fake)
        await _launch_a_run(page)
        assert complaints.heard == []


async def _find_a_run(page: Page) -> None:
    await page.keyboard.press("Control+k")
    await expect(page.locator("#palette-list [role=option]").first).to_be_visible(timeout=PATIENCE_MS)
    await page.keyboard.type("run reverse-0001")
    await expect(page.locator("#palette-0")).to_contain_text("reverse-0001")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text("reverse-0001", timeout=PATIENCE_MS)


async def _open_a_decision(page: Page) -> None:
    await _go(page, "c", "Decisions")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    decision = page.locator("dialog[open] #decision")
    await expect(decision).to_be_visible(timeout=PATIENCE_MS)
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog[open]")).to_have_count(0)


async def _plan_a_resize(page: Page, walked: House) -> None:
    await _go(page, "p", "Pools")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text("eu", timeout=PATIENCE_MS)
    await _tab_to(page, "target")
    await page.keyboard.press("Control+a")
    await page.keyboard.type("6")
    await page.keyboard.press("Tab")
    await page.keyboard.type("by keys")
    await page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("Resize eu", timeout=PATIENCE_MS)
    before = walked.fleet.status().pools[0].target
    await _tab_to(page, "Cancel")
    await page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    assert walked.fleet.status().pools[0].target == before, "planning changes nothing"


async def _drain_a_node(page: Page, fake: FakeControlPlane) -> None:
    await _go(page, "n", "Nodes")
    for _ in range(MOST_ROWS):
        await page.keyboard.press("j")
        if (await page.evaluate("document.activeElement.innerText")).strip().startswith("node-a"):
            break
    await page.keyboard.press(".")
    if not (await page.evaluate(FOCUSED)).startswith("Drain"):
        await _tab_to(page, "Drain")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("Drain node-a?", timeout=PATIENCE_MS)
    await _tab_to(page, "reason")
    await page.keyboard.type("by keys")
    await page.keyboard.press("Enter")
    await expect(page.locator(".flash")).to_contain_text("Node n0 finishes", timeout=PATIENCE_MS)
    assert ("drain", "n0", "admin") in fake.actions


async def _pause_a_flow(page: Page, fake: FakeControlPlane) -> None:
    await _go(page, "d", "Dataflow")
    await _tab_to(page, "Pause")
    for _ in range(MOST_TABS):
        if await page.evaluate("document.activeElement.ariaLabel") == "Pause train":
            break
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("Pause flow train?", timeout=PATIENCE_MS)
    await _tab_to(page, "Cancel")
    await page.keyboard.press("Enter")
    await expect(page.locator("dialog[open]")).to_have_count(0)
    assert not [action for action in fake.actions if action[0] == "paused"]


async def _launch_a_run(page: Page) -> None:
    await page.keyboard.press("Control+k")
    await expect(page.locator("#palette-list [role=option]").first).to_be_visible(timeout=PATIENCE_MS)
    await page.keyboard.press("Escape")
    await _go(page, "r", "Runs")
    await _tab_to(page, "New run")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("New run", timeout=PATIENCE_MS)
    await _tab_to(page, "smoke")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text("Launch", timeout=PATIENCE_MS)
    await _tab_to(page, "limit_s")
    await page.keyboard.press("Control+a")
    await page.keyboard.type("1")
    await _tab_to(page, "Launch run")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(_LAUNCHED, timeout=PATIENCE_MS)


async def _go(page: Page, key: str, title: str) -> None:
    await page.keyboard.press("Escape")  # out of the field that has the focus
    await page.keyboard.press("g")
    await page.keyboard.press(key)
    await expect(page.locator("h1")).to_have_text(title, timeout=PATIENCE_MS)
    await expect(page.locator(".age")).to_have_attribute("data-state", "live", timeout=PATIENCE_MS)


async def _tab_to(page: Page, wanted: str) -> None:
    """Press Tab until what has the focus is called that, or is the field of that name."""
    passed = []
    for _ in range(MOST_TABS):
        await page.keyboard.press("Tab")
        passed.append(await page.evaluate(FOCUSED))
        if passed[-1].startswith(wanted):
            return
    raise AssertionError(f"Tab does not reach {wanted!r}, but {passed}")
