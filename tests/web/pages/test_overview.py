"""The overview: numbers about the fleet, the chart of demand and capacity, pins, pool cards."""

import asyncio
import csv
import html
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web

pytestmark = pytest.mark.anyio

LOSS = "Node lost: n9. Its beats stopped"


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


async def test_the_page_says_whether_the_fleet_is_right_sized_and_what_it_costs(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/")).text

    assert re.search(r'data-cell="fleet/ratio" data-tone="good">1.12', page)
    assert "Right-sized: 45.8 for 41.0 groups/s" in page
    assert re.search(r'data-cell="fleet/target"[^>]*>3<', page)
    assert "Rollout nodes cost $4.00 an hour" in page
    assert "Capacity covered the demand" in page or "Capacity was below the demand" in page
    assert re.search(r'class="demand" d="M[\d.]+ [\d.]+L', page), "the chart is drawn by the server"
    assert re.search(r'data-cell="pool/local/share"[^>]*>100', page)
    assert re.search(r'aria-label="\d nodes? (current|\d behind)', page), "the histogram in words"


async def test_before_anything_is_measured_the_chart_says_what_it_waits_for(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.sequence = 3
    async with web.logged_in() as client:
        await web.until_live(client)
        page = (await client.get("/")).text

    assert "How much is needed is" in page


async def test_files_of_the_chart_have_what_it_plots(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        as_csv = list(csv.reader(io.StringIO((await client.get("/api/v1/series.csv?chart=balance")).text)))
        as_json = (await client.get("/api/v1/series.json?chart=balance")).json()
        table = (await client.get("/charts/balance")).text
        weights = (await client.get("/weights")).text
        other = (await client.get("/charts/wait")).text

    assert as_csv[0] == ["time", "unix_s", "demand", "ready", "ordered", "aimed", "low", "high", "wait"]
    assert len(as_csv) - 1 == len(as_json) == 150
    assert float(as_csv[-1][2]) == as_json[-1]["demand"] == 41.0
    assert "The same as a table" in table
    assert "trainer waits" in table
    published = re.findall(r'href="/weights#([^"]+)">v(\d+)</a>', table)
    assert published[0] == ("version-solver-v131", "131")
    assert published[-1] == ("versions", "1"), "one that the table of weights has no more leads to the table"
    assert 'id="version-solver-v131"' in weights
    assert 'id="versions"' in weights
    assert "Versions published" not in other


async def test_a_decision_has_a_page_with_its_formula_and_what_came_of_it(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/")).text
        pin = re.search(r'class="pin decision" href="(/\?[^"]*event=(\d+))"', page)
        assert pin is not None
        alone = (await client.get(f"/events/{pin[2]}")).text
        opened = (await client.get(pin[1].replace("&amp;", "&"))).text
        missing = await client.get("/events/99999")

    for shown in (alone, opened):
        assert "demand = 32.0 groups a step / 1.1" in shown
        assert "= 41.0 groups/s" in shown
        assert "target = 3 nodes; 3 present, 1 of them on the way" in shown
        assert "2 nodes ready, 1 on the way" in shown
    assert missing.status_code == 404


@pytest.mark.browser
async def test_a_pin_opens_its_drawer_at_its_own_address_by_pointer_and_by_keys(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        pins = page.locator("a.pin")
        await expect(page.locator("html.has-script")).to_be_attached()
        await expect(pins).to_have_count(2)
        drawer = page.get_by_role("complementary", name="What happened")
        await page.locator("a.pin.decision").click()
        await expect(drawer.get_by_role("heading", name="Target moved")).to_be_visible()
        await expect(drawer.get_by_role("link", name="Close")).to_be_focused()
        address = page.url
        assert "event=" in address
        await page.keyboard.press("Escape")
        await expect(drawer).to_be_hidden()
        await expect(page.locator("a.pin.decision")).to_be_focused()
        assert "event=" not in page.url

        await page.keyboard.press("ArrowRight")
        await expect(page.locator("a.pin.loss")).to_be_focused()
        await fake.advance()
        await expect(page.locator('[data-cell="policy/solver/wait"]').first).to_be_visible()
        await expect(page.locator("a.pin.loss")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(drawer).to_contain_text("Its beats stopped")

        await page.goto(address)
        await expect(drawer.get_by_role("heading", name="Target moved")).to_be_visible()
        assert complaints.heard == []


@pytest.mark.browser
async def test_a_pin_that_comes_over_the_live_feed_stands_on_the_chart_and_stays_text(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await expect(page.locator("a.pin")).to_have_count(2)
        fake.world.act(151, "node_lost", "<b>n0</b>", "it went")
        await fake.advance(3)
        newest = page.locator('a.pin.loss[data-ordinal="10000"]')
        await expect(newest).to_have_attribute("aria-label", "Node lost: <b>n0</b>. It went")
        await newest.click()
        await expect(page.locator("#happening-title")).to_have_text("Node lost")
        assert complaints.heard == []


@pytest.mark.browser
async def test_the_script_draws_the_chart_as_the_server_did(web: RunningWeb, chromium: Browser) -> None:
    parts = "[...document.querySelectorAll('.balance [data-part]')].filter((part) => part.getAttribute('d'))"
    drawn = f"{parts}.map((part) => [part.dataset.part, part.getAttribute('d')])"
    async with logged_in_page(chromium, web.login_url, java_script_enabled=False) as (plain, _, context):
        await plain.reload()
        by_server = await plain.evaluate(drawn)
        pins = await plain.locator("a.pin").evaluate_all("pins => pins.map((pin) => pin.ariaLabel)")
        cookies = await context.cookies()
    live = await chromium.new_context()
    await live.add_cookies([{"name": c["name"], "value": c["value"], "url": web.address} for c in cookies])
    page = await live.new_page()
    await page.goto(web.address)
    await expect(page.locator("html.has-script")).to_be_attached()
    by_script = await page.evaluate(drawn)

    assert dict(by_script).keys() == dict(by_server).keys()
    assert {"demand", "ready", "edge", "band", "aimed", "fed", "waits", "published"} <= dict(by_script).keys()
    assert by_script == by_server
    assert await page.locator("a.pin").evaluate_all("pins => pins.map((pin) => pin.ariaLabel)") == pins
    assert LOSS in pins
    await live.close()


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_overview_fits_360_pixels_in_both_themes(web: RunningWeb, chromium: Browser, theme: str) -> None:
    narrow = {"width": 360, "height": 740}
    async with logged_in_page(chromium, web.login_url, viewport=narrow, color_scheme=theme) as (page, complaints, _):
        await expect(page.locator("html.has-script")).to_be_attached()
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        box = await page.locator(".balance .plot").first.bounding_box()
        assert box is not None
        assert box["width"] > 220
        await page.locator("a.pin.loss").click()
        await expect(page.locator("#happening")).to_be_in_viewport()
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        assert complaints.heard == []


async def test_what_is_no_longer_in_memory_is_read_from_what_was_kept(fake: FakeControlPlane, tmp_path: Path) -> None:
    fake.sequence = 100
    async with fake.serving() as dataflow:
        async with running_web(tmp_path, dataflow) as before, before.logged_in() as client:
            await before.until_live(client, sequence=100)
            await _until_recorded(client)
        fake.sequence = 1300  # more than is in memory since, all of which dataflow still has the newest seconds of
        async with running_web(tmp_path, dataflow) as after, after.logged_in() as client:
            await after.until_live(client, sequence=1300)
            recent = (await client.get("/api/v1/series.json?chart=balance")).json()
            await _until_recorded(client)
            hour = (await client.get("/api/v1/series.json?chart=balance&range=1h")).json()
            page = await client.get("/?range=1h")

    assert recent[0]["unix_s"] == fake.world.began_at + 402, "every second one of those in memory"
    began = fake.world.began_at
    kept = [row for row in hour if row["unix_s"] < began + 101]
    assert {row["demand"] for row in kept} >= {28.0, 41.0}
    assert hour[-1]["unix_s"] == began + 1300
    assert page.status_code == 200


async def _until_recorded(client: httpx.AsyncClient) -> None:
    """Wait until the run has a record."""
    for _ in range(300):
        if 'href="/"' in (await client.get("/menu/runs")).text:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the run was not recorded")


async def test_the_ladder_of_versions_has_a_page_a_table_and_files(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        overview = html.unescape((await client.get("/")).text)
        address = re.search(r'href="(/api/v1/series\.csv\?chart=versions[^"]+)"', overview)
        assert address is not None
        lines = (await client.get(address[1])).text.splitlines()
        rows = (await client.get(address[1].replace(".csv", ".json"))).json()
        page = (await client.get("/charts/versions")).text
    assert lines[0] == "time,unix_s,node,versions_behind"
    assert len(lines) - 1 == len(rows) > 0
    assert {"node-a", "node-b"} >= {row["node"] for row in rows}
    assert "The same as a table" in page
    assert page.count("rung-row") == len({row["node"] for row in rows})
