"""The frame of every page, in a real browser: palette, keys, saved views, ranges, menus, and the kill switch."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import RunningWeb, flash_of, running_web
from tests.fakes.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PALETTE = "dialog#palette"

SHOWN = re.compile("live|stale")
"""There are numbers. How old they are is not looked at here: the fake reports when it is told to, and a machine may be
slow."""


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


async def opened(page: Page) -> None:
    await expect(page.locator("html.has-script")).to_be_attached()
    await expect(page.locator(".age")).to_have_attribute("data-state", SHOWN)


async def test_the_palette_finds_pages_nodes_and_actions_and_goes_there_by_keys_alone(
    web: RunningWeb, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await opened(page)
        await page.keyboard.press("Control+k")
        await expect(page.locator(PALETTE)).to_be_visible()
        await page.keyboard.type("node-b")
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/nodes/n1")

        await page.keyboard.press("/")
        await page.keyboard.type("weig")
        await expect(page.get_by_role("option").first).to_contain_text("Weights")
        await page.keyboard.press("Escape")
        await expect(page.locator(PALETTE)).to_be_hidden()

        await page.keyboard.press("/")
        await page.keyboard.type("nothing is called so")
        await expect(page.locator(f"{PALETTE} li")).to_have_text("Nothing is called that")
        await page.keyboard.press("Escape")

        await page.keyboard.press("/")
        await page.keyboard.type("next theme")
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        assert complaints.heard == []


async def test_the_palette_and_the_search_find_the_last_of_many_nodes(tmp_path: Path, chromium: Browser) -> None:
    fake = FakeControlPlane(World(nodes=tuple(f"node-{number:04}" for number in range(700))), sequence=3)
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as web:
        await web.until_fed()
        async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
            await opened(page)
            listed = await (await page.request.get(f"{web.address}/palette")).json()
            assert listed["is_whole"] is False
            assert "node-0699" not in {entry["label"] for entry in listed["entries"]}
            assert 'href="/nodes/n699"' in await (await page.request.get(f"{web.address}/search?q=0699")).text()

            await page.keyboard.press("Control+k")
            await expect(page.get_by_role("option").first).to_be_visible()
            await page.keyboard.type("node-0699")
            await expect(page.get_by_role("option")).to_have_count(1)
            await expect(page.get_by_role("option")).to_contain_text("node-0699")
            await page.keyboard.press("Control+a")
            await page.keyboard.type("nothing is called so")
            await expect(page.locator(f"{PALETTE} li")).to_have_text("Nothing is called that")
            await page.keyboard.press("Control+a")
            await page.keyboard.type("node-0698")
            await expect(page.get_by_role("option")).to_contain_text("node-0698")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/nodes/n698")
            assert complaints.heard == []


async def test_what_the_palette_lists_depends_on_the_role_and_search_works_without_scripts(
    web: RunningWeb, chromium: Browser
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        await web.until_live(admin, sequence=150)
        labels = {
            client: {entry["label"] for entry in (await client.get("/palette")).json()["entries"]}
            for client in (admin, viewer)
        }
        assert {"Pause flow train", "Audit", "Overview", "node-a", "local"} <= labels[admin]
        assert labels[admin] - labels[viewer] == {"Pause flow train", "Audit"}

        page = (await viewer.get("/search", params={"q": "node b"})).text
        assert 'href="/nodes/n1"' in page
        assert "node-a" not in page.partition("<tbody>")[2]
        assert "Nothing is called that" in (await viewer.get("/search?q=zzz")).text


async def test_keys_go_to_pages_move_through_rows_and_are_off_while_typing(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await opened(page)
        await page.keyboard.press("g")
        await page.keyboard.press("r")
        await page.wait_for_url("**/runs")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.keyboard.press("j")
        await expect(page.locator("tbody tr").first).to_be_focused()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/runs/1")

        await page.goto(f"{web.address}/nodes")
        await opened(page)
        for key in ("j", "j", "k", "j"):
            await page.keyboard.press(key)
        await expect(page.locator("#row-n1")).to_be_focused()
        await page.keyboard.press(".")
        await expect(page.get_by_role("link", name="Drain node-b")).to_be_focused()
        await page.keyboard.press("Escape")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("o")
        assert page.url.endswith("/nodes"), "a dialog is open"
        await page.keyboard.press("Escape")

        await page.goto(f"{web.address}/audit")
        await opened(page)
        await page.locator("main input").first.focus()
        await page.keyboard.type("go?")
        assert page.url.endswith("/audit")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert complaints.heard == []


async def test_a_view_is_saved_found_in_the_palette_opened_and_deleted(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await page.goto(f"{web.address}/nodes?state=ready")
        await opened(page)
        await page.keyboard.press("v")
        dialog = page.get_by_role("dialog", name="Saved views")
        await dialog.get_by_label("Save").fill("ready <b>ones</b>")
        await dialog.get_by_role("button", name="Save view").click()
        await expect(page.locator(".flash")).to_contain_text("This view is saved as ready <b>ones</b>")
        assert page.url.endswith("/nodes?state=ready")

        await page.goto(web.address)
        await opened(page)
        await page.keyboard.press("/")
        await page.keyboard.type("view ready")
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/nodes?state=ready")

        await opened(page)
        await page.keyboard.press("v")
        await page.get_by_role("button", name="Delete ready <b>ones</b>").click()
        await expect(page.locator(".flash")).to_contain_text("is deleted")
        await expect(page.locator("main")).to_contain_text("None yet")
        assert complaints.heard == []


async def test_brackets_change_the_range_and_a_paused_page_keeps_its_stretch_of_time_in_the_address(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await opened(page)
        await page.keyboard.press("]")
        await page.wait_for_url("**range=1h")
        await opened(page)
        await page.keyboard.press("[")
        await page.wait_for_url("**range=15m")
        await opened(page)
        await page.keyboard.press("l")
        await expect(page.locator(".age")).to_contain_text("paused")
        end = fake.world.began_at + 150
        assert f"to={end:.0f}" in page.url
        paused = page.url

        await fake.advance(30)
        await page.keyboard.press("l")
        await expect(page.locator(".age")).to_have_attribute("data-state", "live")
        assert "to=" not in page.url

        await page.goto(paused)
        await opened(page)
        ticks = await page.locator(".balance .x-axis text").all_text_contents()
        assert ticks[-1] == "end"
        await expect(page.get_by_role("link", name="Back to live")).to_be_visible()
        drawn = await page.locator('.balance [data-part="demand"]').get_attribute("d")
        await fake.advance(3)
        await expect(page.locator('[data-cell="policy/solver/steps"]').first).to_be_attached()
        assert await page.locator('.balance [data-part="demand"]').get_attribute("d") == drawn
        await page.keyboard.press("l")
        await page.wait_for_url("**range=15m")
        assert complaints.heard == []


async def test_menus_open_by_key_walk_by_arrows_and_close_by_escape(
    fake: FakeControlPlane, web: RunningWeb, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await opened(page)
        await page.keyboard.press("e")
        menu = page.locator("details.export").first
        await expect(menu.get_by_role("link", name="As a table")).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await expect(menu.get_by_role("link", name="CSV")).to_be_focused()
        href = await menu.get_by_role("link", name="CSV").get_attribute("href")
        assert href is not None
        assert href.startswith("/api/v1/series.csv?chart=balance&policy=solver")
        await page.keyboard.press("Escape")
        await expect(menu.get_by_role("link", name="CSV")).to_be_hidden()

        await fake.advance()  # the menu names the live run, and a run that is silent for 10 s is not live
        await expect(page.locator(".age")).to_have_attribute("data-state", "live")
        await page.locator(".run-picker summary").click()
        await expect(page.locator("#run-menu [aria-current]")).to_contain_text("reverse-0001")
        await page.locator("h1").click()
        await expect(page.locator("#run-menu")).to_be_hidden()
        assert complaints.heard == []


async def test_kill_is_asked_when_pressed_and_done_when_held(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet") as fleet,
        running_web(tmp_path / "web", dataflow, fleet=fleet.address) as web,
        logged_in_page(chromium, web.login_url, viewport={"width": 360, "height": 740}) as (page, complaints, _),
    ):
        await page.goto(web.address)
        await opened(page)
        await expect(page.locator(".chip.mode")).to_have_text("on")
        kill = page.locator("a.kill")
        await kill.click()
        await page.wait_for_url("**/kill")
        programs = page.get_by_label("Stop programs")
        await programs.get_by_label("Reason").fill("a test")
        await programs.get_by_role("button").click()
        await expect(page.locator(".flash")).to_contain_text("agents", ignore_case=True)
        banner = page.locator('[data-region="kill"] .banner')
        await expect(banner).to_contain_text("on for agents")
        await banner.get_by_role("link", name="Change").click()
        everybody = page.get_by_label("Let everybody go on")
        await everybody.get_by_label("Reason").fill("it is over")
        await everybody.get_by_role("button").click()
        await expect(banner).to_have_count(0)

        await kill.focus()
        await page.keyboard.down("Enter")
        await expect(page.locator(".flash")).to_contain_text("nothing is launched or retired", ignore_case=True)
        await page.keyboard.up("Enter")
        await expect(banner).to_contain_text("Nothing is launched or retired")
        assert fleet.status().kill.value == "all"
        await page.goto(f"{web.address}/audit")
        await expect(page.locator("tbody")).to_contain_text("fleet.kill")
        assert complaints.heard == []


async def test_who_may_not_operate_sees_no_kill_and_without_a_fleet_the_page_says_how_to_have_one(
    web: RunningWeb,
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        assert 'class="kill"' not in (await admin.get("/")).text
        page = (await admin.get("/kill")).text
        assert "No fleet service" in page
        assert "astraflow serve fleet" in page
        assert (await viewer.get("/kill")).status_code == 403
        refused = await admin.post("/kill", data={"scope": "everything"})
        assert "none, agents or all" in await flash_of(admin, refused)
