"""The pages below a path of a real nginx, which removes the path or keeps it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.fakes.browser import BrowserErrors, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.nginx import serving_nginx
from tests.fakes.web import free_port, running_web
from tests.web.all_pages import advancing_reports
from tests.web.security.test_addresses import certificate_files

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.needs("nginx"), pytest.mark.past_reports]

STEPS = '[data-live-text="policy/solver/steps"]'


@asynccontextmanager
async def proxied_page(
    chromium: Browser, fake: FakeControlPlane, folder: Path, prefix: str, *, strips_prefix: bool
) -> AsyncIterator[tuple[Page, BrowserErrors, str]]:
    """Yields a browser behind nginx that is logged in, its errors and the public address."""
    port, public_port = free_port(), free_port()
    public = f"https://localhost:{public_port}{prefix}"
    with serving_nginx(
        folder / "nginx",
        port=public_port,
        target=port,
        prefix=prefix,
        strips_prefix=strips_prefix,
        tls=certificate_files(folder),
    ):
        async with (
            fake.serving() as dataflow,
            running_web(folder / "web", dataflow, port=port, behind_proxy=f"{public}/") as web,
            logged_in_page(chromium, web.login_url, ignore_https_errors=True) as (page, complaints, context),
        ):
            assert web.login_url.startswith(f"{public}/login?token=")
            yield page, complaints, public
            assert {cookie["path"] for cookie in await context.cookies()} <= {f"{prefix}/"}


@pytest.mark.parametrize(
    ("prefix", "strips_prefix"),
    [
        pytest.param("/team/astraflow", True, marks=pytest.mark.long),
        ("/team/astraflow", False),
        ("/user/ada@lab.example/proxy/8080", True),
    ],
)
async def test_every_step_of_a_user_stays_below_the_path_of_the_proxy(
    chromium: Browser, fake: FakeControlPlane, tmp_path: Path, ready_cli: str, prefix: str, strips_prefix: bool
) -> None:
    async with proxied_page(chromium, fake, tmp_path, prefix, strips_prefix=strips_prefix) as (
        page,
        complaints,
        public,
    ):
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        page.on("websocket", lambda live: addresses.append(live.url.replace("wss:", "https:")))

        await expect(page).to_have_url(f"{public}/")
        await expect(page.locator(STEPS)).to_have_text("131")
        await fake.advance()
        await expect(page.locator(STEPS)).to_have_text("132")
        async with advancing_reports(fake):
            await walked(page, public, prefix)
        assert [url for url in addresses if not url.startswith(f"{public}/")] == []
        assert complaints.heard == []


async def walked(page: Page, public: str, prefix: str) -> None:
    """Does what a user does on the pages."""
    await page.locator("[data-drawers]").first.evaluate("marks => marks.scrollIntoView()")  # charts in view are drawn
    await page.locator("a[data-drawer]").first.click()
    await expect(page.locator("#drawer")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page).to_have_url(f"{public}/?policy=solver&range=15m")

    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Search").fill("Nodes")
    await expect(page.get_by_role("option").first).to_contain_text("Nodes")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{public}/nodes")
    await page.get_by_role("link", name="Drain node-a").click()
    dialog = page.get_by_role("dialog", name="Drain node-a?")
    await dialog.get_by_label("Reason").fill("too slow")
    await dialog.get_by_role("button", name="Drain node").click()
    await expect(page.locator(".flash")).to_contain_text("Node n0 finishes what it has")
    await expect(page).to_have_url(f"{public}/nodes")

    await page.goto(f"{public}/nodes/map")
    await page.wait_for_load_state("networkidle")
    await page.locator(".heatmap-plot").focus()
    await page.keyboard.press("Home")
    await expect(page.locator(".heatmap-words")).to_contain_text("node-")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(f"^{re.escape(public)}/nodes/n[01]$"))

    await page.get_by_role("link", name="Runs", exact=True).click()
    await page.get_by_role("link", name="New run").click()
    await page.locator("a[href*='/runs/new?recipe=']").first.click()
    await expect(page.locator("#preview")).to_be_visible()
    await expect(page.locator("#preview")).to_contain_text(f"POST {prefix}/api/v1/launches")

    await page.goto(f"{public}/runs/1")
    await expect(page.locator("#training-title")).to_be_visible()
    async with page.expect_download() as download:
        await page.locator(".menu:has(a[href*='training.csv']) > summary").first.click()
        await page.locator("a[href*='training.csv']").first.click()
    assert (await (await download.value).path()).read_text().count("\n") > 10
    await page.goto(f"{public}/runs/1/trajectories")
    await page.locator("a.row-link").first.click()
    await expect(page.locator("h1")).to_contain_text("Reward")

    await page.get_by_role("button", name="Dark theme").click()
    await page.get_by_role("button", name="Log out").click()
    await expect(page).to_have_url(f"{public}/login")
    await page.goto(f"{public}/nodes?state=lost")
    await expect(page).to_have_url(f"{public}/login?next=/nodes%3Fstate%3Dlost")
