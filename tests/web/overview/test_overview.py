"""The overview: fleet figures, the chart of demand and capacity, annotations and pool cards."""

import asyncio
import csv
import io
import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import hostile_record
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import parsed
from web.charts import panels

pytestmark = pytest.mark.anyio


@pytest.mark.long
async def test_the_overview_compares_capacity_with_demand_and_shows_the_cost(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = parsed(await client.get("/"))

    def figure(key: str) -> tuple[str, list[float]]:
        cell = page.one(f"[data-live-text={key}]")
        return cell.tone, cell.numbers

    assert figure("fleet/ratio") == ("", [0.74])
    assert figure("fleet/ratio_note") == ("", [30.5, 41.0]), "the ratio is that of the two printed numbers"
    assert figure("fleet/target") == ("", [3])
    assert figure("fleet/price_note") == ("", [4.0])
    assert figure("pool/local/share") == ("", [100])
    chart = page.one("figure.wide")
    assert chart.one(".chart-insight").text == page.one("[data-live-text=fleet/balance/15m]").text != ""
    assert chart.one("polyline")["points"], "the server draws a line for pages without scripts"
    assert len(chart.one(".legend").texts("output")) == 6
    assert re.match(r"\d+ node", page.one(".lag-histogram").one("svg")["aria-label"]), "the histogram has a text"


async def test_a_chart_names_the_reason_of_missing_values(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        page = parsed(await client.get("/"))

    assert page.one("figure.wide").one(".chart-reason").text == panels.ALL_CHARTS["balance"].reason != ""


@pytest.mark.past_reports
async def test_the_files_of_the_chart_have_the_plotted_values(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        as_csv = list(csv.reader(io.StringIO((await client.get("/api/v1/series.csv?chart=balance")).text)))
        as_json = (await client.get("/api/v1/series.json?chart=balance")).json()
        page = parsed(await client.get("/charts/balance"))
        weights = parsed(await client.get("/weights"))
        other = parsed(await client.get("/charts/wait"))

    assert as_csv[0] == ["time", "unix_s", "ready", "ordered", "low", "high", "aimed", "demand"]
    assert len(as_csv) - 1 == len(as_json) == 150
    assert float(as_csv[-1][-1]) == as_json[-1]["demand"] == 41.0
    assert page.one("table").texts("th")[-1] == "demand"
    assert page.one("table").rows()
    published = [(link["href"], link.text) for link in page.one(".publishes-list").all("a")]
    assert published[0] == ("/weights#version-solver-v131", "v131")
    assert published[-1] == ("/weights#versions", "v1"), "a version that the weights page no longer lists"
    assert weights.has("#version-solver-v131")
    assert weights.has("#versions")
    assert not other.has("#versions")


@pytest.mark.past_reports
async def test_a_decision_has_a_page_with_its_calculation_and_effect(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = parsed(await client.get("/"))
        marks = json.loads(page.one("#table-points").text)["annotations"]
        (path,) = (mark[4] for mark in marks if mark[2] == "decision")
        ordinal = path.rpartition("/")[2]
        alone = parsed(await client.get(path))
        opened = parsed(await client.get(page.one(".marks")["data-href"].replace("{}", ordinal)))
        missing = await client.get("/events/99999")

    for page in (alone, opened):
        detail = page.one("#event-detail")
        demand, *_, target = detail.one(".formulas").all("li")
        assert demand.numbers[:2] == [32.0, pytest.approx(1.1, abs=0.05)]
        assert demand.numbers[-1] == 41.0
        assert target.numbers == [3, 1, 3], "present and pending nodes, and the target"
        assert [2, 1] in [effect.numbers[:2] for effect in detail.all("dl.figures")[0].all("dd")], "ready and pending"
    assert missing.status_code == 404


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.past_reports
async def test_an_annotation_opens_its_drawer_by_pointer_and_by_keys(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        annotations = page.locator("a.mark")
        await expect(page.locator("html.has-script")).to_be_attached()
        await expect(annotations).to_have_count(2)
        drawer = page.get_by_role("complementary", name="Events")
        await page.locator("a.mark.decision").click()
        await expect(drawer.get_by_role("heading", name="Target moved")).to_be_visible()
        await expect(drawer.get_by_role("link", name="Close")).to_be_focused()
        address = page.url
        assert "event=" in address
        await page.keyboard.press("Escape")
        await expect(drawer).to_be_hidden()
        await expect(page.locator("a.mark.decision")).to_be_focused()
        assert "event=" not in page.url

        await page.keyboard.press("ArrowRight")
        await expect(page.locator("a.mark.loss")).to_be_focused()
        await fake.advance()
        await expect(page.locator('[data-live-text="policy/solver/wait"]').first).to_be_visible()
        await expect(page.locator("a.mark.loss")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(drawer).to_contain_text("No heartbeat for 9 s")

        await page.goto(address)
        await expect(drawer.get_by_role("heading", name="Target moved")).to_be_visible()
        assert complaints.heard == []


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.past_reports
async def test_a_live_annotation_is_added_to_the_chart_as_text(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await expect(page.locator("a.mark")).to_have_count(2)
        fake.synthetic_run.act(151, hostile_record("<b>n0</b>"))
        await fake.advance(3)
        newest = page.locator('a.mark.loss[data-ordinal="10000"]')
        await expect(newest).to_have_attribute("aria-label", "Node lost: <b>n0</b>. <b>n0</b>")
        await newest.click()
        await expect(page.locator("#event-detail-title")).to_have_text("Node lost")
        assert complaints.heard == []


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_overview_fits_360_pixels_in_both_themes(web: RunningWeb, chromium: Browser, theme: str) -> None:
    narrow = {"width": 360, "height": 740}
    async with logged_in_page(chromium, web.login_url, viewport=narrow, color_scheme=theme) as (page, complaints, _):
        await expect(page.locator("html.has-script")).to_be_attached()
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await page.locator("figure.wide").scroll_into_view_if_needed()
        box = await page.locator("figure.wide .u-over").bounding_box()
        assert box is not None
        assert box["width"] > 220
        await page.locator("a.mark.loss").click()
        await expect(page.locator("#event-detail")).to_be_in_viewport()
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        assert complaints.heard == []


@pytest.mark.past_reports
async def test_points_that_left_memory_are_read_from_the_recorded_history(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    fake.sequence = 100
    async with fake.serving() as dataflow:
        async with running_web(tmp_path, dataflow) as before, before.logged_in() as client:
            await before.until_live(client, sequence=100)
            await _until_recorded(client)
        fake.sequence = 1300  # exceeds the points in memory; dataflow still has the newest seconds
        async with running_web(tmp_path, dataflow) as after, after.logged_in() as client:
            await after.until_live(client, sequence=1300)
            recent = (await client.get("/api/v1/series.json?chart=balance")).json()
            await _until_recorded(client)
            hour = (await client.get("/api/v1/series.json?chart=balance&range=1h")).json()
            page = await client.get("/?range=1h")

    assert recent[0]["unix_s"] == fake.synthetic_run.began_at + 402, "every second point in memory"
    began = fake.synthetic_run.began_at
    remaining_rows = [row for row in hour if row["unix_s"] < began + 101]
    assert {row["demand"] for row in remaining_rows} >= {28.0, 41.0}
    assert hour[-1]["unix_s"] == began + 1300
    assert page.status_code == 200


async def _until_recorded(client: httpx.AsyncClient) -> None:
    """Waits until the run is recorded."""
    for _ in range(300):
        if 'href="/"' in (await client.get("/menu/runs")).text:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the run was not recorded")


async def test_the_version_lag_chart_has_a_page_a_table_and_files(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        overview = parsed(await client.get("/"))
        address = next(link for link in overview.links() if link.startswith("/api/v1/series.csv?chart=versions"))
        lines = (await client.get(address)).text.splitlines()
        rows = (await client.get(address.replace(".csv", ".json"))).json()
        page = parsed(await client.get("/charts/versions"))
    assert lines[0] == "time,unix_s,node,versions_behind"
    assert len(lines) - 1 == len(rows) > 0
    assert {"node-a", "node-b"} >= {row["node"] for row in rows}
    assert page.one("table").rows()
    assert json.loads(page.one("#table-points").text)["lags"].keys() == {row["node"] for row in rows}
