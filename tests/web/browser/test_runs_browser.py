"""Pages from a run down to a conversation in a real browser: by keyboard alone, in both themes and on a phone."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from astraflow.contract.training_metrics import TRAINING_METRICS
from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from tests.web.all_pages import advancing_reports
from tests.web.runs.test_run_list import filled, launched, record
from tests.web.trajectories.test_trajectories import HOSTILE, recorded
from web.charts.panels import metric_format, value_text

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240)]

PATIENCE_MS = 40_000
"""Milliseconds. A busy machine must not fail the test."""

PLACE = """[
    Math.round(document.activeElement.getBoundingClientRect().top), document.activeElement.getAttribute('href')
]"""
"""Script that returns the focused element's vertical position in pixels and its address."""

A_FEW_LINES = 120
"""Pixels by which titles above may grow or shrink when their text changes."""


COVERED = """
    [...document.querySelectorAll('.run-head .page-actions a, .run-head .page-actions button')].filter((element) => {
      const box = element.getBoundingClientRect();
      return !element.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
    }).map((element) => element.textContent.trim())
"""
"""Script that returns the buttons of a run's page whose centre is covered by another element."""


@pytest.mark.long
async def test_no_button_of_a_run_is_covered_at_any_width(tmp_path: Path, chromium: Browser) -> None:
    launched("one")
    await filled(tmp_path, record("one", seconds=60))
    async with running_web(tmp_path, "") as web, logged_in_page(chromium, web.login_url) as (page, _, _context):
        for width in (390, 1280, 1440, 1920):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.goto(f"{web.address}/runs/1")
            await expect(page.get_by_role("link", name="Logs")).to_be_visible()
            assert await page.evaluate(COVERED) == [], width


@pytest.mark.long
async def test_the_keyboard_opens_a_conversation_from_a_histogram_bar_and_returns(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    fake.synthetic_run.tool = HOSTILE
    async with advancing_reports(fake), logged_in_page(chromium, web.login_url) as (page, complaints, context):
        async with web.client() as client:
            client.cookies = {cookie["name"]: cookie["value"] for cookie in await context.cookies()}
            await recorded(web, client)
        await page.goto(f"{web.address}/runs/1")
        await page.locator("a.bar").first.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/trajectories?*min_reward=0.0&max_reward=0.0", timeout=PATIENCE_MS)
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await expect(page.locator("main .table tbody tr").nth(1)).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_contain_text("Reward", timeout=PATIENCE_MS)
        await expect(page.locator(".turn[data-model]").first).to_be_visible()
        first = page.url
        await page.keyboard.press("j")
        await page.wait_for_url(lambda url: url != first, timeout=PATIENCE_MS)
        await page.keyboard.press("k")
        await page.wait_for_url(first, timeout=PATIENCE_MS)
        await page.keyboard.press("Escape")
        await page.wait_for_url("**/trajectories?*min_reward=0.0&max_reward=0.0", timeout=PATIENCE_MS)
        assert complaints.heard == []


@pytest.mark.long
async def test_the_progress_of_a_run_updates_and_keeps_scroll_and_focus(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with advancing_reports(fake), logged_in_page(chromium, web.login_url) as (page, complaints, context):
        async with web.client() as client:
            client.cookies = {cookie["name"]: cookie["value"] for cookie in await context.cookies()}
            await recorded(web, client)
        await page.goto(f"{web.address}/runs/1")
        await expect(page.locator(".age")).to_have_attribute("data-state", "live", timeout=PATIENCE_MS)
        await page.locator("a.bar").first.focus()
        at, focused = await page.evaluate(PLACE)
        await page.evaluate("document.querySelector('#insight-reward').textContent = 'from before'")
        await expect(page.locator("#insight-reward")).not_to_have_text("from before", timeout=PATIENCE_MS)
        assert await page.evaluate(PLACE) == [pytest.approx(at, abs=A_FEW_LINES), focused]
        assert await page.evaluate("scrollY") > 0
        assert complaints.heard == []


@pytest.mark.long
async def test_pages_of_runs_fit_a_phone(web: RunningWeb, fake: FakeControlPlane, chromium: Browser) -> None:
    phone = {"width": 360, "height": 800}
    async with (
        advancing_reports(fake),
        logged_in_page(chromium, web.login_url, viewport=phone) as (page, complaints, _),
    ):
        await page.goto(f"{web.address}/runs")
        await expect(page.locator("main")).to_contain_text("reverse-0001", timeout=PATIENCE_MS)
        for path in ("/runs", "/runs/1", "/runs/1/trajectories", "/runs/1/groups/train:42"):
            await page.goto(f"{web.address}{path}")
            assert await _overflow(page) == 0, path
        assert complaints.heard == []


async def test_scripts_format_metrics_as_the_server_does(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, _, _):
        main = await page.locator("script[type=module][src*='main.js']").get_attribute("src")
        cases = [(value, kind) for kind in METRIC_FORMATS for value in METRIC_VALUES]
        path = (main or "").replace("main.js", "formats.js")
        shown = await page.evaluate(SHOWN, [path, cases])
    assert shown == [value_text(value, kind) for value, kind in cases]


SHOWN = """async ([path, cases]) => {
    const { valueText } = await import(path);
    return cases.map(([value, kind]) => valueText(value, kind));
}"""
METRIC_FORMATS = sorted({metric_format(metric) for metric in TRAINING_METRICS})
METRIC_VALUES: tuple[float, ...] = (
    *(0, 1, 2.0, -3, 235, 999.4, 999.6, 0.5, 0.0123, -0.25, 0.00099, 1e-6, -3.21e-9, 1234, 37912.4, 4.2e8, 3.95e14),
    *(599.0, 750.25),
)


async def _overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(await page.evaluate(script))
