"""What went wrong, for whoever hands it on; and when what is away is tried again."""

import html
import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.fakes.browser import browser
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from web.door.problem_reports import bare_address
from web.feed.fleet_state import FleetState
from web.feed.state import RunState

pytestmark = pytest.mark.anyio

REPORT = re.compile(r'id="report"[^>]*>([^<]*)<')


async def test_an_error_page_has_a_report_that_names_the_request_and_no_secret(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        first = await client.get("/runs/99?policy=solver&token=astraflow_pat_abc&form_token=xyz")
        other = await client.get("/no-such-page")
        api = await client.get("/api/v1/runs/99")
    report = html.unescape(REPORT.findall(first.text)[0])
    assert report.splitlines()[0] == "status: 404 There is no such page"
    assert f"request: {first.headers['x-request-id']}" in report
    assert re.search(r"^time: 20\d\d-\d\d-\d\dT[\d:]+\+00:00$", report, re.MULTILINE)
    assert "address: GET /runs/99?policy=solver&token=...&form_token=..." in report
    assert "No run 99 was recorded here." in report
    assert "abc" not in report
    assert "xyz" not in report
    assert len({answer.headers["x-request-id"] for answer in (first, other, api)}) == 3


@pytest.mark.parametrize(
    ("path", "query", "bare"),
    [
        ("/pools/eu", "", "/pools/eu"),
        ("/login", "token=one-time", "/login?token=..."),
        ("/login/provider/return", "code=a&state=b", "/login/provider/return?code=...&state=..."),
        ("/login", "next=/login%3Ftoken%3Dabc", "/login?next=..."),
        ("/x", "text=astraflow_pat_abc", "/x?text=[secret]"),
        ("/runs/<b>", "text=a b", "/runs/%3Cb%3E?text=a+b"),
    ],
)
def test_an_address_is_told_without_what_lets_somebody_in(path: str, query: str, bare: str) -> None:
    assert bare_address(path, query) == bare


async def test_what_is_away_says_when_it_is_tried_again() -> None:
    clock = ManualClock()
    run, fleet = RunState(clock), FleetState(clock, is_absent=False)
    assert (run.next_try_s, fleet.next_try_s) == (None, None)
    run.lose("nobody is there", next_try_s=4.0)
    fleet.rest(4.0)
    await clock.pass_time(1.5)
    assert (run.next_try_s, fleet.next_try_s) == (2.5, 2.5)
    await clock.pass_time(10.0)
    assert (run.next_try_s, fleet.next_try_s) == (0.0, 0.0)
    run.trying()
    assert run.next_try_s is None
    assert run.feed.problem == "nobody is there", "what was wrong is told until it is known better"


async def test_pages_of_a_fleet_that_is_away_say_when_it_is_asked_again(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet="127.0.0.1:9") as web,
        web.logged_in() as client,
    ):
        page = (await client.get("/pools")).text
    assert re.search(r'Next try in <time data-behavior="until"|It is being asked now', page)


@pytest.mark.browser
async def test_the_banner_counts_to_the_next_try_and_the_report_is_copied(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with fake.serving() as dataflow, browser() as chromium:
        async with running_web(tmp_path, dataflow) as web:
            context = await chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
            page = await context.new_page()
            await page.clock.install()
            await page.goto(web.login_url)
            await expect(page.locator(".age")).to_have_attribute("data-state", "live")
            await page.goto(f"{web.address}/no-such-page")
            await page.get_by_role("button", name="Copy the report").click()
            await expect(page.get_by_role("button", name="Copied")).to_be_visible()
            copied = await page.evaluate("navigator.clipboard.readText()")
            assert copied == await page.locator("#report").inner_text()
            await page.goto(web.address)
            await expect(page.locator(".age")).to_have_attribute("data-state", "live")
        await page.clock.fast_forward(6_000)
        banner = page.locator("#banner")
        await expect(banner).to_contain_text("This page lost its server and asks again by itself")
        await expect(banner).to_contain_text(re.compile(r"next try in \d+\s*s|trying now"))
        await context.close()
