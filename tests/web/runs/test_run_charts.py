"""Charts of an ended run: the table and the files of each chart hold the drawn values."""

import csv
import html
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from astraflow.contract.training_metrics import ROLLOUT_REWARD, TRAINING_METRICS
from tests.fakes.synthetic_run import METRICS, SyntheticRun
from tests.fakes.web import running_web
from tests.web.comparison.test_compared_runs import recorded
from tests.web.page_elements import parsed
from tests.web.runs.test_run_list import filled, record
from web.charts.panels import value_text
from web.history.samples import NODE_VALUES
from web.history.training_steps import X_VALUES
from web.runs.sheets import LABELS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ended(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a page whose run is recorded and not active."""
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, SyntheticRun(nodes=("node-a", "slow", "node-c"), began_at=1000.0), seconds=150)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        yield client


def menus(page: str) -> list[str]:
    """Returns the addresses of the CSV files of charts that a page offers."""
    return [html.unescape(address) for address in re.findall(r'href="(/runs/1/charts/[^"]+\.csv[^"]*)"', page)]


def metrics(page: str) -> list[str]:
    """Returns the addresses of the CSV files of the training metrics to which a page leads."""
    addresses = re.findall(r'href="(/runs/1/charts/\w+\?[^"]*)" title', page)
    return [html.unescape(address).replace("?", ".csv?") for address in addresses]


async def test_every_chart_of_a_run_has_its_files_its_table_and_a_link(ended: httpx.AsyncClient) -> None:
    page = (await ended.get("/runs/1")).text
    names = {re.match(r"/runs/1/charts/(\w+)\.csv", address)[1] for address in menus(page)}  # type: ignore[index] # the match exists
    assert {"reward", "wait", "timeline", "versions", "reward_rollouts", *METRICS} == names
    assert len(metrics(page)) == len({ROLLOUT_REWARD, *METRICS})
    for address in menus(page)[::5]:
        rows = list(csv.reader(io.StringIO((await ended.get(address)).text)))
        as_json = (await ended.get(address.replace(".csv", ".json"))).json()
        assert len(rows) - 1 == len(as_json) > 0, address
        assert list(as_json[0]) == rows[0], address
        alone = await ended.get(address.replace(".csv", ""))
        assert alone.status_code == 200, address
        assert parsed(alone).all("table")[-1].rows(), address
        assert address in menus(alone.text)


async def test_files_and_the_api_have_the_drawn_time_range(ended: httpx.AsyncClient) -> None:
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
    assert {"reward", "wait_s"} <= everything[0].keys()
    assert all("from=" in address for address in (*menus(page), *metrics(page)))


@pytest.mark.long
async def test_training_metrics_are_exported_by_step_one_alone_or_all(ended: httpx.AsyncClient) -> None:
    every = (await ended.get("/runs/1/training.json?policy=solver")).json()
    table = list(csv.reader(io.StringIO((await ended.get("/runs/1/training.csv")).text)))
    of_api = (await ended.get("/api/v1/series.json?run_id=1&chart=training")).json()
    alone = (await ended.get("/api/v1/series.json?run_id=1&chart=tis_cut")).json()
    part = (await ended.get(f"/runs/1/training.json?from={every[9]['unix_s']}&to={every[19]['unix_s']}")).json()

    assert of_api == every
    assert [row["step"] for row in every] == list(range(1, len(every) + 1))
    assert table[0] == list(every[0])
    assert table[0][:6] == ["time", "unix_s", *X_VALUES]
    assert set(table[0][6:]) == {ROLLOUT_REWARD, *METRICS}
    assert alone == [{name: row[name] for name in ("time", "unix_s", *X_VALUES, "tis_cut")} for row in every]
    assert [row["step"] for row in part] == list(range(10, 21))


@pytest.mark.long
async def test_the_page_of_a_metric_explains_it_and_has_the_values_of_its_file(ended: httpx.AsyncClient) -> None:
    page = parsed(await ended.get("/runs/1/charts/entropy"))
    rows = (await ended.get("/runs/1/charts/entropy.json")).json()

    assert page.one("h1").text == "Entropy"
    description = next(metric.description for metric in TRAINING_METRICS if metric.name == "entropy")
    assert description in page.one("main").text
    assert page.one("polyline")["points"]
    assert page.one(".legend").one("output").raw_text == value_text(rows[-1]["entropy"], "nats")
    assert page.rows()[0][0] == str(rows[-1]["step"])


async def test_the_series_of_a_node_are_returned_for_a_run_and_a_range(ended: httpx.AsyncClient) -> None:
    whole = (await ended.get("/api/v1/series.json?run_id=1&node=node-a")).json()
    part = (await ended.get(f"/api/v1/series.json?run_id=1&node=node-a&from=1000&to={whole[2]['unix_s'] - 1}")).json()
    table = (await ended.get("/api/v1/series.csv?run_id=1&node=node-a")).text.splitlines()
    unknown = (await ended.get("/api/v1/series.json?run_id=1&node=absent")).json()

    assert list(whole[0]) == ["time", "unix_s", *NODE_VALUES]
    assert table[0].split(",") == list(whole[0])
    assert part == whole[:2]
    assert unknown == []


async def test_a_run_without_steps_and_a_range_without_steps_say_so(ended: httpx.AsyncClient, tmp_path: Path) -> None:
    await filled(tmp_path, record("two", seconds=2))
    await recorded(tmp_path, 2, SyntheticRun(began_at=1000.0), seconds=2)
    without_range = parsed(await ended.get("/runs/1?from=10&to=40"))
    without_steps = parsed(await ended.get("/runs/2"))
    metric_page = parsed(await ended.get("/runs/2/charts/entropy"))

    for page, state in ((without_range, "empty-range"), (without_steps, "no-step")):
        assert page.has(f".empty[data-state={state}]")
        assert page.all(".multiple") == []
    assert metric_page.has(".empty")
    assert (await ended.get("/runs/2/charts/tis_cut")).status_code == 404, "no value, and not described"


async def test_unknown_charts_are_answered_with_the_known_ones(ended: httpx.AsyncClient) -> None:
    page = await ended.get("/runs/1/charts/nope")
    file = await ended.get("/runs/1/charts/nope.csv")
    api = await ended.get("/api/v1/series.csv?run_id=1&chart=balance")
    without = await ended.get("/api/v1/series.csv?chart=timeline")
    ratio = await ended.get("/api/v1/series.csv?chart=ratio")
    assert (page.status_code, file.status_code, api.status_code, without.status_code) == (404, 404, 404, 404)
    for detail in (parsed(page).one("main").text, api.json()["detail"]):
        assert all(name in detail for name in LABELS)
    assert "run_id" in without.json()["detail"]
    assert ratio.status_code == 503, "a known chart, without a run yet"


async def test_steps_are_read_as_columns_over_any_range_and_kind_of_axis(ended: httpx.AsyncClient) -> None:
    every = (await ended.get("/runs/1/training.json")).json()
    table = (await ended.get("/runs/1/steps.json?policy=solver")).json()
    part = (
        await ended.get(f"/runs/1/steps.json?metric=entropy&from={every[9]['unix_s']}&to={every[29]['unix_s']}")
    ).json()

    assert [kind for kind, _ in table["kinds"]] == ["step", "time", "tokens", "episodes"]
    assert {"entropy", "loss"} <= table["columns"].keys()
    assert part["columns"].keys() == {"entropy", "step", "total_tokens", "total_episodes"}
    assert part["columns"]["step"] == list(range(10, 31))
