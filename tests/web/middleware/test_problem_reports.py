"""Problem reports on error pages, and the time of the next retry of an unavailable service."""

import html
import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.fakes.browser import browser
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import parsed
from web.app import address_without_secrets
from web.state.fleet_state import FleetState
from web.state.run_state import RunState

pytestmark = pytest.mark.anyio

REPORT = re.compile(r'id="report"[^>]*>([^<]*)<')


@pytest.mark.long
async def test_the_report_of_an_error_page_has_the_request_and_no_secret(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        first = await client.get("/runs/99?policy=solver&token=astraflow_pat_abc&form_token=xyz")
        other = await client.get("/no-such-page")
        api = await client.get("/api/v1/runs/99")
    report = html.unescape(REPORT.findall(first.text)[0])
    lines = dict(line.split(": ", 1) for line in report.splitlines())
    assert next(iter(lines)) == "status"
    assert lines["status"].startswith("404")
    assert lines["request"] == first.headers["x-request-id"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]+\+00:00", lines["time"])
    assert lines["address"].split() == ["GET", "/runs/99?policy=solver&token=...&form_token=..."]
    assert "99" in lines["detail"]
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
def test_credentials_are_removed_from_reported_addresses(path: str, query: str, bare: str) -> None:
    assert address_without_secrets(path, query) == bare


async def test_an_unreachable_service_has_the_time_of_its_next_retry() -> None:
    clock = ManualClock()
    run, fleet = RunState(clock), FleetState(clock, is_absent=False)
    assert (run.next_try_s, fleet.next_try_s) == (None, None)
    run.record_failure("unreachable", next_try_s=4.0)
    fleet.schedule_retry(4.0)
    await clock.pass_time(1.5)
    assert (run.next_try_s, fleet.next_try_s) == (2.5, 2.5)
    await clock.pass_time(10.0)
    assert (run.next_try_s, fleet.next_try_s) == (0.0, 0.0)
    run.record_retry()
    assert run.next_try_s is None
    assert run.connection.problem == "unreachable", "the problem is shown until it is resolved"


@pytest.mark.long
async def test_the_page_of_an_unreachable_fleet_shows_the_next_retry(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet="127.0.0.1:9") as web,
        web.logged_in() as client,
    ):
        page = parsed(await client.get("/pools"))
    assert page.one("[data-fleet]")["data-fleet"] in ("connecting", "lost")
    assert page.has("[data-part=next-try]"), "the time of the next try, or that one is in progress"


@pytest.mark.long
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
            await page.get_by_role("button", name="Copy report").click()
            await expect(page.get_by_role("button", name="Copied")).to_be_visible()
            copied = await page.evaluate("navigator.clipboard.readText()")
            assert copied == await page.locator("#report").inner_text()
            await page.goto(web.address)
            await expect(page.locator(".age")).to_have_attribute("data-state", "live")
        await page.clock.fast_forward(6_000)
        banner = page.locator("#banner")
        await expect(banner).to_contain_text("The web process does not answer")
        await expect(banner).to_contain_text(re.compile(r"next try in \d+\s*s|trying now"))
        await context.close()
