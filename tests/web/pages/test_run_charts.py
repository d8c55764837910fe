"""Charts of a run that ended, each by itself: its table and its files hold what is drawn."""

import csv
import html
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.web import running_web
from tests.fakes.world import World
from tests.web.reading.test_comparing import recorded
from tests.web.reading.test_run_list import filled, record

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ended(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A browser over a run that is recorded and does not go on."""
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, World(nodes=("node-a", "slow", "node-c"), began_at=1000.0), seconds=150)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        yield client


def menus(page: str) -> list[str]:
    """Addresses of the CSV files that a page offers."""
    return [html.unescape(found) for found in re.findall(r'href="(/runs/1/charts/[^"]+\.csv[^"]*)"', page)]


async def test_every_chart_of_a_run_has_its_files_its_table_and_a_link(ended: httpx.AsyncClient) -> None:
    page = (await ended.get("/runs/1")).text
    names = {re.match(r"/runs/1/charts/(\w+)\.csv", address)[1] for address in menus(page)}  # type: ignore[index] # as it was found
    assert {"reward", "wait", "loss", "length", "timeline", "versions"} == names
    for address in menus(page):
        rows = list(csv.reader(io.StringIO((await ended.get(address)).text)))
        as_json = (await ended.get(address.replace(".csv", ".json"))).json()
        assert len(rows) - 1 == len(as_json) > 0, address
        assert list(as_json[0]) == rows[0], address
        alone = await ended.get(address.replace(".csv", ""))
        assert alone.status_code == 200, address
        assert "The same as a table" in alone.text
        assert len(re.findall("<tr>", alone.text)) > 1, address
        assert address in menus(alone.text)


async def test_files_hold_the_stretch_that_is_drawn_and_programs_get_the_same(ended: httpx.AsyncClient) -> None:
    whole = (await ended.get("/runs/1/charts/reward.json")).json()
    begin, end = whole[20]["unix_s"] - 0.5, whole[60]["unix_s"] + 0.5
    query = f"from={begin}&to={end}"
    part = (await ended.get(f"/runs/1/charts/reward.json?{query}")).json()
    api = (await ended.get(f"/api/v1/series.json?run_id=1&chart=reward&{query}")).json()
    everything = (await ended.get("/api/v1/series.json?run_id=1")).json()
    page = (await ended.get(f"/runs/1?{query}")).text
    assert whole[0].keys() == {"time", "unix_s", "reward", "reward_average", "reward_trained"}
    assert begin <= part[0]["unix_s"] <= part[-1]["unix_s"] <= end
    assert api == part
    assert {"reward", "loss", "kl", "wait_s"} <= everything[0].keys()
    assert all("from=" in address for address in menus(page))


async def test_charts_that_there_are_not_are_answered_with_those_that_there_are(ended: httpx.AsyncClient) -> None:
    page = await ended.get("/runs/1/charts/nope")
    file = await ended.get("/runs/1/charts/nope.csv")
    api = await ended.get("/api/v1/series.csv?run_id=1&chart=balance")
    without = await ended.get("/api/v1/series.csv?chart=timeline")
    ratio = await ended.get("/api/v1/series.csv?chart=ratio")
    assert (page.status_code, file.status_code, api.status_code, without.status_code) == (404, 404, 404, 404)
    assert "its charts are reward" in html.unescape(page.text)
    assert "its charts are reward" in api.json()["detail"]
    assert "name it with run_id" in without.json()["detail"]
    assert ratio.status_code == 503, "a chart that there is; of no run yet"
