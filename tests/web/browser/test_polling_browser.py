"""Pages that refresh themselves, in a real browser: changes appear, and the user's input and focus stay."""

import pytest
from playwright.async_api import Browser, Request, Response, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet
from tests.fakes.web import RunningWeb

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long]

POLLED = ("/now", "/table", "/newer", "/state", "/recent")
TOP = "(element) => element.getBoundingClientRect().top"


async def test_a_pool_page_updates_without_changing_forms_focus_and_open_details(
    pages: RunningWeb, fleet: RunningFleet, chromium: Browser
) -> None:
    async with logged_in_page(chromium, pages.login_url) as (page, complaints, _):
        await page.goto(f"{pages.address}/pools/eu")
        machines = page.locator("#pool-records tbody tr", has=page.locator("th code"))
        await expect(machines).to_have_count(2)
        reason = page.locator('form[action="/pools/eu/plans"] input[name="reason"]')
        await reason.fill("half a sen")
        opened = page.locator("#pool-launches details:not(.menu)")
        await opened.locator("summary").click()
        await reason.focus()
        await page.evaluate("scrollTo(0, 120)")
        seen_at = await reason.evaluate(TOP)
        await fleet.parts.want(3)
        await fleet.pass_time(120.0)
        await expect(machines).to_have_count(3)
        await expect(page.locator("#pool-now .number-value").first).to_contain_text("3")
        await expect(page.locator("#pool-launches")).to_contain_text("Of 3 launches, half")
        await expect(reason).to_have_value("half a sen")
        await expect(reason).to_be_focused()
        await expect(opened).to_have_attribute("open", "")
        assert abs(await reason.evaluate(TOP) - seen_at) <= 1, "new rows above do not move the visible part"
        assert complaints.heard == []


async def test_an_unchanged_page_is_answered_with_304(pages: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, pages.login_url) as (page, _, _context):
        await page.goto(f"{pages.address}/pools/eu")

        def is_empty(answer: Response) -> bool:
            return answer.url.endswith("/pools/eu/now") and answer.status == 304

        async with page.expect_response(is_empty, timeout=60_000):
            pass


@pytest.mark.parametrize("path", ["/pools", "/pools/eu", "/runs", "/decisions", "/audit", "/maintainer"])
async def test_one_switch_pauses_all_polling(pages: RunningWeb, chromium: Browser, path: str) -> None:
    async with logged_in_page(chromium, pages.login_url) as (page, _, _context):
        await page.clock.install()
        await page.goto(pages.address + path)
        await expect(page.locator("html.has-script")).to_be_attached()

        def is_polled(request: Request) -> bool:
            return request.url.partition("?")[0].endswith(POLLED)

        async with page.expect_request(is_polled, timeout=60_000):
            await page.clock.fast_forward(6_000)
        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator(".age")).to_contain_text("paused")
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        for _ in range(4):
            await page.clock.fast_forward(6_000)
        await page.evaluate("1")  # round trip: the page has sent its requests
        assert urls == []
        await page.get_by_role("button", name="Resume").click()
        async with page.expect_request(is_polled, timeout=60_000):
            await page.clock.fast_forward(6_000)


async def test_runs_update_in_place_and_new_decisions_wait_for_a_click(
    pages: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, pages.login_url) as (page, complaints, context):
        await page.goto(f"{pages.address}/runs")
        row = page.locator("#run-1")
        await expect(row).to_be_attached()
        chosen = row.get_by_role("checkbox")
        await chosen.check()
        before = await row.locator("td.num").first.inner_text()
        await fake.advance(40)
        await expect(row.locator("td.num").first).not_to_have_text(before)
        await expect(chosen).to_be_checked()

        await page.goto(f"{pages.address}/decisions")
        rows = page.locator(".decisions-table tbody tr")
        shown = await rows.count()
        other = await context.new_page()
        await other.goto(f"{pages.address}/pools/eu")
        await other.get_by_role("button", name="Hold", exact=True).click()
        await expect(other.locator(".flash")).to_be_visible()
        await page.bring_to_front()
        chip = page.locator("#newer a")
        await expect(chip).to_have_text("1 new: show it")
        await expect(rows).to_have_count(shown)
        await chip.click()
        await expect(rows).to_have_count(shown + 1)
        await expect(chip).to_have_count(0)
        assert complaints.heard == []
