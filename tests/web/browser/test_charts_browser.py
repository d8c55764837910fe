"""Charts in a real browser: zoom, settings in the address, cursor, gestures, images, and which charts are drawn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.fakes.browser import BrowserErrors, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.web.comparison.test_compared_runs import recorded
from tests.web.runs.test_run_list import filled, record

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240)]

ENTROPY = "figure:has(> figcaption a[href*='/charts/entropy'])"


@asynccontextmanager
async def run_page(
    directory: Path, chromium: Browser, path: str = "/runs/1", **options: Any
) -> AsyncIterator[tuple[Page, BrowserErrors]]:
    """Yields the page of an ended run of 150 steps."""
    await filled(directory, record("one", seconds=150), record("two", seconds=150))
    for number in (1, 2):
        await recorded(directory, number, SyntheticRun(nodes=("a", "b"), began_at=1000.0), seconds=150)
    async with (
        running_web(directory, "127.0.0.1:9") as web,
        logged_in_page(chromium, web.login_url, **options) as (page, complaints, _),
    ):
        await page.goto(web.address + path)
        await page.locator("figure[data-behavior=plot]").first.scroll_into_view_if_needed()
        await expect(page.locator(".u-over").first).to_be_attached()
        yield page, complaints


DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
"""Waits until outdated charts are drawn."""


async def x_range(page: Page, figure: str = "figure.wide") -> tuple[float, float]:
    """Returns the first and the last step at which the keyboard puts the cursor: the ends of the shown range."""
    ends = []
    await page.mouse.move(5, 5)
    await page.evaluate(DRAWN)
    body = page.locator(f"{figure} .plot-body")
    await body.focus()
    for key in ("ArrowLeft", "ArrowRight"):
        for _ in range(12):
            await page.keyboard.press(f"Shift+{key}")
        text = await page.locator(f"{figure} .reading").inner_text()
        ends.append(float(text.partition(" · ")[0].removeprefix("step ")))
    await page.keyboard.press("Escape")
    return ends[0], ends[1]


async def test_dragging_zooms_all_charts_and_the_address_keeps_the_range_and_the_settings(
    tmp_path: Path, chromium: Browser
) -> None:
    async with run_page(tmp_path, chromium, "/runs/1/charts/entropy") as (page, complaints):
        over = page.locator("figure.wide .u-over")
        assert await x_range(page) == (1, 131)
        box = await over.bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 40)
        await page.mouse.down()
        await page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=4)
        await page.mouse.up()
        await expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
        await page.wait_for_function("document.querySelector('.u-select').offsetWidth === 0")
        first, last = await x_range(page)
        assert [first, last] == pytest.approx([34, 66], abs=3)
        assert "x=step&from=" in page.url

        await page.get_by_role("button", name="Log scale").click()
        await page.locator("[data-smooth]").fill("0.9")
        await page.get_by_role("button", name="Entropy").click()
        assert all(part in page.url for part in ("log=1", "smooth=0.9", "hide=entropy.0"))
        await page.reload()
        await expect(over).to_be_attached()
        assert await x_range(page) == (first, last)
        await expect(page.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
        await expect(page.get_by_role("button", name="Entropy")).to_have_attribute("aria-pressed", "false")

        await page.locator("figure.wide .plot-body").focus()
        await page.keyboard.press("0")
        await expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()
        await page.keyboard.press("+")
        await expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
        await over.dblclick()
        assert await x_range(page) == (1, 131)
        await page.get_by_role("button", name="by tokens").click()
        await expect(page.locator("figure.wide")).to_have_attribute("data-kind", "tokens")
        assert complaints.heard == []


async def test_charts_share_one_cursor_and_a_point_opens_the_samples_of_its_step(
    tmp_path: Path, chromium: Browser
) -> None:
    async with run_page(tmp_path, chromium) as (page, complaints):
        latest = page.locator(f"{ENTROPY} output")
        before = await latest.inner_text()
        await page.locator(".multiple-title a").first.focus()
        for _ in range(4):
            await page.keyboard.press("Shift+ArrowLeft")
        await expect(latest).not_to_have_text(before)
        await expect(page.locator(".multiple .reading:not(:empty)")).to_have_count(1)
        await page.keyboard.press("Escape")
        await expect(latest).to_have_text(before)

        over = page.locator(f"{ENTROPY} .u-over")
        box = await over.bounding_box()
        assert box is not None
        await over.click(position={"x": 0.5 * box["width"], "y": 20})
        await page.wait_for_url("**/runs/1/trajectories?policy=solver&step=*")
        assert int(page.url.rpartition("=")[2]) == pytest.approx(66, abs=3)
        assert complaints.heard == []


async def test_charts_out_of_sight_are_not_drawn(tmp_path: Path, chromium: Browser) -> None:
    async with run_page(tmp_path, chromium, viewport={"width": 1000, "height": 500}) as (page, complaints):
        figures, drawn = page.locator("figure[data-behavior=plot]"), page.locator(".u-over")
        assert 0 < await drawn.count() < await figures.count() / 2
        await figures.last.scroll_into_view_if_needed()
        await expect(figures.last.locator(".u-over")).to_be_attached()
        assert complaints.heard == []


async def test_a_chart_is_enlarged_in_place_pinned_and_saved_as_an_image(tmp_path: Path, chromium: Browser) -> None:
    async with run_page(tmp_path, chromium) as (page, complaints):
        menu = page.locator(f"{ENTROPY} details.export")
        await menu.locator("summary").click()
        await menu.get_by_role("button", name="Enlarge").click()
        await expect(page.locator(f"{ENTROPY}.enlarged")).to_be_attached()
        await expect(page.locator(f"{ENTROPY} .uplot")).to_have_css("height", "320px")
        async with page.expect_download() as download:
            await menu.get_by_role("button", name="PNG").click()
        image = await (await download.value).path()
        assert image.read_bytes().startswith(b"\x89PNG")
        await menu.get_by_role("button", name="Pin to the top").click()
        await expect(page.locator(".pinned .multiple-title")).to_have_text(["Entropy"])
        assert complaints.heard == []


async def test_compared_runs_are_lines_of_one_chart(tmp_path: Path, chromium: Browser) -> None:
    path = "/runs/compare/charts/entropy?run=1&run=2"
    async with run_page(tmp_path, chromium, path) as (page, complaints):
        assert await x_range(page) == (1, 131)
        await page.get_by_role("button", name="by time").click()
        await expect(page.locator("figure.wide")).to_have_attribute("data-kind", "elapsed")
        await expect(page.locator(".legend output")).to_have_count(2)
        assert complaints.heard == []


async def test_the_first_screen_has_the_reward_and_live_points_are_appended_to_a_chart(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    laptop = {"width": 1440, "height": 900}
    async with logged_in_page(chromium, web.login_url, viewport=laptop) as (page, complaints, _):
        reward = page.locator(".learned canvas")
        await expect(reward).to_be_visible()
        assert await reward.evaluate("canvas => canvas.getBoundingClientRect().bottom") <= 900, "without a fleet"
        await page.goto(f"{web.address}/charts/wait?x=step")
        await expect(page.locator(".u-over")).to_be_attached()
        await page.locator(".u-over").evaluate("over => over.dataset.same = 'chart'")
        for _ in range(3):
            await fake.advance()
        await page.locator("figure .plot-body").focus()
        for _ in range(12):
            await page.keyboard.press("Shift+ArrowRight")
        await expect(page.locator(".reading")).to_contain_text("step 134")
        await expect(page.locator(".u-over")).to_have_attribute("data-same", "chart")
        assert complaints.heard == []


TABLE = {
    "kinds": [["time", "at"]],
    "at": [0, 1000, 1000, 100_000, 1000],
    "columns": {"value": [1, 3, None, 5, 7], "busy": [0, 3, 6, 6, 8], "idle": [0, 1, 2, 2, 4]},
    "lags": {"left": [9, 9, None, None, None], "slow": [0, 2, 2, 1, 1], "quick": [0, 0, 1, 0, 0]},
    "range": None,
    "end": None,
}
COLUMNS = """async ([source, table]) => {
    const holder = document.createElement("script");
    Object.assign(holder, { type: "application/json", id: "table-made", textContent: JSON.stringify(table) });
    document.body.append(holder);
    const { columnsOf, smoothed } = await import(source.replace("main.js", "plotdata.js"));
    const line = (value, isTotal = false) => ({ value, isTotal, table: "made" });
    const of = (form, lines) => columnsOf({ form, lines, table: "made" }, "step");
    const lines = of("lines", [line("value")]);
    const shares = of("shares", [line("busy", true), line("idle", true)]);
    const strips = of("strips", []);
    return { lines, shares, names: strips.lines.map(({ value }) => value), mean: smoothed([1, null, 3], 0.5) };
}"""


async def test_columns_have_gaps_shares_of_totals_and_the_nodes_that_matter(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, _, _):
        source = await page.locator("script[type=module][src*='main.js']").get_attribute("src")
        columns = await page.evaluate(COLUMNS, [source, TABLE])

    lines, shares = columns["lines"], columns["shares"]
    assert lines["kind"] == "time", "the table has no steps"
    assert lines["xs"] == [0, 10, 20, 520, 1020, 1030]
    assert lines["values"] == [[1, 3, None, None, 5, 7]], "a hole in time interrupts the line"
    assert shares["values"] == [[None, 0.75, 0.75, None, None, 0.5], [None, 0.25, 0.25, None, None, 0.5]]
    assert shares["drawn"][1] == [None, 1, 1, None, None, 1], "shares are stacked up to the whole"
    assert shares["latest"] == [8 / 12, 4 / 12]
    assert columns["names"] == ["slow", "quick"], "serving nodes, farthest behind first; one that left is folded"
    assert columns["mean"] == [1, None, pytest.approx(7 / 3)]
