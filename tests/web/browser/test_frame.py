"""The layout of every page in a real browser: palette, keys, ranges, menus and the kill switch."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import notice_after, parsed

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PALETTE = "dialog#palette"

SHOWN = re.compile("live|stale")
"""States in which the page has numbers. Tests ignore their age: the fake reports on request; machines may be slow."""


async def opened(page: Page) -> None:
    await expect(page.locator("html.has-script")).to_be_attached()
    await expect(page.locator(".age")).to_have_attribute("data-state", SHOWN)


async def test_the_palette_finds_pages_nodes_and_actions_and_works_by_keyboard(
    web: RunningWeb, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await opened(page)
        await page.keyboard.press("Control+k")
        await expect(page.locator(PALETTE)).to_be_visible()
        await page.keyboard.type("node-b")
        await expect(page.get_by_role("option").first).to_contain_text("node-b")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/nodes/n1")

        await page.keyboard.press("/")
        await page.keyboard.type("weig")
        await expect(page.get_by_role("option").first).to_contain_text("Weights")
        await page.keyboard.press("Escape")
        await expect(page.locator(PALETTE)).to_be_hidden()

        await page.keyboard.press("/")
        await page.keyboard.type("nothing is called so")
        await expect(page.locator(f"{PALETTE} li")).to_have_text("No matches")
        await page.keyboard.press("Escape")

        await page.keyboard.press("/")
        await page.keyboard.type("next theme")
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        assert complaints.heard == []


@pytest.mark.long
async def test_the_palette_and_the_search_find_the_last_of_many_nodes(tmp_path: Path, chromium: Browser) -> None:
    fake = FakeControlPlane(SyntheticRun(nodes=tuple(f"node-{number:04}" for number in range(700))), sequence=3)
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as web:
        await web.until_connected()
        async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
            await opened(page)
            listed = await (await page.request.get(f"{web.address}/palette")).json()
            assert listed["is_whole"] is False
            assert "node-0699" not in {entry["label"] for entry in listed["entries"]}
            assert 'href="/nodes/n699"' in await (await page.request.get(f"{web.address}/search?q=0699")).text()

            await page.keyboard.press("Control+k")
            await expect(page.get_by_role("option").first).to_be_visible()
            await page.keyboard.type("node-0699")
            await expect(page.get_by_role("option").first).to_contain_text("node-0699")
            await page.keyboard.press("Control+a")
            await page.keyboard.type("nothing is called so")
            await expect(page.locator(f"{PALETTE} li")).to_have_text("No matches")
            await page.keyboard.press("Control+a")
            await page.keyboard.type("node-0698")
            await expect(page.get_by_role("option").first).to_contain_text("node-0698")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/nodes/n698")
            assert complaints.heard == []


async def test_the_palette_depends_on_the_role_and_search_works_without_scripts(
    web: RunningWeb, chromium: Browser
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        await web.until_live(admin, sequence=150)
        entries = {client: (await client.get("/palette")).json()["entries"] for client in (admin, viewer)}
        listed = {client: {entry["href"] for entry in entries[client]} for client in entries}
        assert {"node-a", "local"} <= {entry["label"] for entry in entries[viewer]}
        assert {"/flows/train/pause", "/audit", "/", "/nodes/n0"} <= listed[admin]
        drains = {f"/nodes/n{number}/drain" for number in range(2)}
        more = {"/flows/train/pause", "/audit", "/runs/new", "/alerts/new"} | drains
        assert more <= listed[admin] - listed[viewer]
        allowed = ("/runs/new?", "/settings#", *more)  # other actions lead to pages of all users
        assert all(href.startswith(allowed) for href in listed[admin] - listed[viewer])
        assert [(await client.get(path)).status_code for client in (admin, viewer) for path in sorted(drains)[:1]] == [
            200,
            403,
        ]

        search_results = parsed(await viewer.get("/search", params={"q": "node b"})).one("tbody")
        assert search_results.links() == ["/nodes/n1"]
        assert not parsed(await viewer.get("/search?q=zzz")).has("tbody")


@pytest.mark.long
async def test_shortcuts_open_pages_and_move_through_rows_except_while_typing(
    web: RunningWeb, chromium: Browser
) -> None:
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


@pytest.mark.long
async def test_brackets_change_the_range_and_a_paused_page_has_it_in_its_address(
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
        end = fake.synthetic_run.began_at + 150
        assert f"to={end:.0f}" in page.url
        paused = page.url

        await fake.advance(30)
        await page.keyboard.press("l")
        await expect(page.locator(".age")).to_have_attribute("data-state", "live")
        assert "to=" not in page.url

        await page.goto(paused)
        await opened(page)
        await expect(page.get_by_role("link", name="Back to live")).to_be_visible()
        demand = page.locator("figure.wide .legend output").last
        drawn = await demand.inner_text()
        await fake.advance(3)
        await expect(page.locator('[data-live-text="policy/solver/steps"]').first).to_be_attached()
        assert await demand.inner_text() == drawn
        await page.keyboard.press("l")
        await page.wait_for_url("**range=15m")
        assert complaints.heard == []


@pytest.mark.long
async def test_menus_open_by_key_and_close_by_escape(
    fake: FakeControlPlane, web: RunningWeb, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await opened(page)
        await page.keyboard.press("e")
        menu = page.locator("details.export").first
        await expect(menu.get_by_role("button", name="Enlarge")).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await expect(menu.get_by_role("link", name="As a table")).to_be_focused()
        href = await menu.get_by_role("link", name="CSV").get_attribute("href")
        assert href is not None
        assert href.startswith("/api/v1/series.csv?chart=balance&policy=solver")
        await page.keyboard.press("Escape")
        await expect(menu.get_by_role("link", name="CSV")).to_be_hidden()

        await fake.advance()  # the menu names the live run; a run without a report for 10 s is not live
        await expect(page.locator(".age")).to_have_attribute("data-state", "live")
        await page.locator(".run-picker summary").click()
        await expect(page.locator("#run-menu [aria-current]")).to_contain_text("reverse-0001")
        await page.locator("h1").click()
        await expect(page.locator("#run-menu")).to_be_hidden()
        assert complaints.heard == []


@pytest.mark.long
async def test_the_kill_button_asks_when_pressed_and_acts_when_held(
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
        programs = page.get_by_label("Stop agents")
        await programs.get_by_label("Reason").fill("a test")
        await programs.get_by_role("button").click()
        banner = page.locator('[data-region="kill"] .banner')
        await expect(banner).to_contain_text("on for agents")
        await expect(page.locator(".flash")).to_have_count(0)  # would repeat the banner
        await banner.get_by_role("link", name="Change").click()
        allow_all = page.get_by_label("Allow all")
        await allow_all.get_by_label("Reason").fill("it is over")
        await allow_all.get_by_role("button").click()
        await expect(banner).to_have_count(0)

        await kill.focus()
        await page.keyboard.down("Enter")
        await expect(banner).to_contain_text("No instance is started or removed")
        await page.keyboard.up("Enter")
        assert fleet.status().kill.value == "all"
        await page.goto(f"{web.address}/audit")
        await expect(page.locator("tbody")).to_contain_text("fleet.kill")
        assert complaints.heard == []


@pytest.mark.long
async def test_viewers_see_no_kill_switch_and_without_a_fleet_its_page_shows_a_command(
    web: RunningWeb,
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        assert 'class="kill"' not in (await admin.get("/")).text
        page = parsed(await admin.get("/kill"))
        assert page.one("[data-fleet]")["data-fleet"] == "absent"
        assert ["astraflow", "serve", "fleet"] in [command[:3] for command in page.commands()]
        assert (await viewer.get("/kill")).status_code == 403
        refused = await admin.post("/kill", data={"scope": "everything"})
        assert (await notice_after(admin, refused))["data-code"] == "kill_switch.unknown_scope"
