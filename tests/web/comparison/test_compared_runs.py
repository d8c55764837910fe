"""Comparison of two to four runs, and charts of recorded runs."""

import html
import json
import re
from pathlib import Path

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStepQuery
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import running_web
from tests.web.page_elements import notice_after, parsed
from tests.web.runs.test_run_list import filled, launched, record
from web.database.db import open_database
from web.history import series_queries, series_writer
from web.history.points import point_of
from web.history.samples import NodeBuckets, point_samples
from web.history.training_steps import add_steps
from web.runs.timeline import timeline

SOME_CHARTS = ("reward", "wait", "loss")
"""Charts whose every form is read."""

pytestmark = pytest.mark.anyio


async def recorded(directory: Path, run_id: int, synthetic_run: SyntheticRun, *, seconds: int) -> None:
    """Records a run as the recorder does."""
    database, buckets = open_database(directory, ""), NodeBuckets()
    samples = []
    for second in range(1, seconds + 1):
        report = synthetic_run.report(second)
        samples += [*point_samples(point_of(report)), *buckets.add(report)]
    await database.write(lambda session: series_writer.add(session, run_id, samples, names={}))
    steps = synthetic_run.training_steps(seconds, TrainingStepQuery(policy=PolicyId("solver"))).steps
    await database.write(lambda session: add_steps(session, run_id, steps))
    database.close()


async def test_a_comparison_has_a_line_for_each_run_and_the_differing_settings(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=60), record("two", seconds=90))
    for number, (name, rate) in enumerate((("one", 1e-3), ("two", 1e-4)), start=1):
        folder = launched(name)
        recipe = {"trainer": {"learning_rate": rate, "seed": 1}, "note": "<script>alert(1)</script>" * number}
        (folder / "recipe.json").write_text(json.dumps(recipe))
        await recorded(tmp_path, number, SyntheticRun(run=name, began_at=1000.0), seconds=30 * number + 30)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        page = (await client.get("/runs/compare?run=1&run=2")).text
        lines = (await client.get("/runs/compare.csv?run=1&run=2&by=step")).text.splitlines()
        told_by_api = (await client.get("/api/v1/comparison?run=1&run=2")).json()
        rows = (await client.get("/runs/compare.json?run=1&run=2&by=step")).json()
        alone = await client.get("/runs/compare?run=1")
        notice = await notice_after(client, alone)
        unknown = await client.get("/runs/compare?run=1&run=77")

    elements = parsed(page)
    for run in (1, 2):
        table = json.loads(elements.one(f"#table-steps-{run}").text)
        assert [kind for kind, _ in table["kinds"]] == ["step", "elapsed", "tokens", "episodes"]
    reward = json.loads(elements.all("figure.chart")[-1]["data-options"])
    assert [line["label"] for line in reward["lines"]] == ["one", "two"]
    assert "<code>trainer.learning_rate</code>" in page
    assert "<code>0.001</code>" in page
    assert "trainer.seed" not in page
    assert "<script>alert" not in page
    assert [run["name"] for run in told_by_api["runs"]] == ["one", "two"]
    assert {"key": "trainer.learning_rate", "values": ["0.001", "0.0001"]} in told_by_api["differences"]
    assert [dict(zip(told_by_api["columns"], row, strict=True)) for row in told_by_api["rows"]] == rows
    insight = elements.all("h2.chart-insight")[0]
    higher, lower = insight.numbers
    assert (insight.text.split()[0], 1 > higher > lower) == ("two", True)
    assert lines[0].startswith("id,run,policy,step,")
    assert {line.split(",")[1] for line in lines[1:]} == {"one", "two"}
    assert (notice.tone, notice.numbers) == ("bad", [2, 8, 1])
    assert unknown.status_code == 404


@pytest.mark.long
async def test_a_recorded_run_shows_its_charts_and_events_over_any_range(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, SyntheticRun(run="one", began_at=1000.0), seconds=150)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        whole = (await client.get("/runs/1")).text
        part = (await client.get("/runs/1?from=1020&to=1080")).text

    for page in (whole, part):
        elements = parsed(page)
        assert elements.has("#insight-wait")
        assert {"Entropy", "Loss"} <= {title.text for title in elements.all(".multiple-title")}
        assert elements.one("#insight-timeline").numbers[0] == 87
        assert len(json.loads(elements.one("#table-lags").text)["lags"]) == 2
    assert "Node lost: n9" in whole
    assert "Node lost: n9" not in part
    assert 'value="1970-01-01T00:17:00"' in part


@pytest.mark.long
async def test_the_live_page_loads_the_progress_and_the_chart_titles_of_a_run(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, SyntheticRun(run="one", began_at=1000.0), seconds=150)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        page = (await client.get("/runs/1")).text
        course = (await client.get("/runs/1/progress?policy=solver")).text
        part = (await client.get("/runs/1/progress?policy=solver&from=1020&to=1080")).text

    assert "<!doctype" not in course
    assert all(len(json.loads(parsed(text).one("#table-lags").text)["lags"]) == 2 for text in (course, part))
    assert "Node lost: n9" in course
    assert "Node lost: n9" not in part
    titles = re.findall(r'<h2 class="chart-insight" id="(insight-\w+)" hx-swap-oob="true"><bdi>([^<]+)<', course)
    assert {"insight-reward", "insight-wait"} <= {name for name, _ in titles}
    for name, title in titles:
        assert f'id="{name}"><bdi>{title}<' in page or f'id="{name}"' not in page, "the page begins with the same"


@pytest.mark.long
async def test_the_nodes_that_were_farthest_behind_are_found(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, SyntheticRun(nodes=("node-a", "slow", "node-c"), began_at=1000.0), seconds=150)
    database = open_database(tmp_path, "")
    highest = await database.read(lambda session: series_queries.highest_subjects(session, 1, "node", "lag", at_most=1))
    every = await database.read(lambda session: series_queries.highest_subjects(session, 1, "node", "lag", at_most=8))
    database.close()

    assert highest == ["slow"]
    assert every == ["node-a", "node-c", "slow"]


def test_a_timeline_has_no_gaps_between_steps_and_restarts_with_the_run() -> None:
    counted = [(0.0, 0.0), (10.0, 8.0), (20.0, 8.0), (30.0, 16.0), (40.0, 0.0), (50.0, 8.0)]
    rows = [(at, {"compute_s": done, "wait_s": done / 4, "publish_s": 0.0}) for at, done in counted]

    spent = timeline(rows)

    assert [interval[:2] for interval in spent.intervals] == [(0.0, 10.0), (10.0, 30.0), (40.0, 50.0)]
    assert re.findall(r"\d+", spent.insight) == ["80", "20"], "percent computed and waited"
    assert [text.strip("\u202f%") for text in spent.view.latest] == ["80", "0", "20"]


async def test_each_chart_of_a_comparison_has_exports_a_table_and_a_link(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=60), record("two", seconds=90))
    for number in (1, 2):
        await recorded(tmp_path, number, SyntheticRun(run=str(number), began_at=1000.0), seconds=30 * number + 30)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        page = html.unescape((await client.get("/runs/compare?run=1&run=2")).text)
        for by in ("step", "time"):
            files = re.findall(r'href="(/runs/compare/charts/(\w+)\.csv\?[^"]+)"', page)
            metrics = re.findall(r'href="(/runs/compare/charts/(\w+)\?[^"]+)" title', page)
            assert {"reward", "wait"} <= {name for _, name in files}
            assert {"loss", "entropy", "tis_cut"} <= {name for _, name in metrics}
            for address, name in [(f"{file[0]}&by={by}", file[1]) for file in files if file[1] in SOME_CHARTS]:
                lines = (await client.get(address)).text.splitlines()
                assert lines[0].startswith(f"id,run,policy,{by},")
                assert len(lines) > 1, address
                rows = (await client.get(address.replace(".csv", ".json"))).json()
                alone = (await client.get(address.replace(".csv", ""))).text
                assert len(lines) - 1 == len(rows)
                assert {row["run"] for row in rows} == {"one", "two"}
                assert len(parsed(alone).rows()) > 5, address
                assert f"/runs/compare/charts/{name}.csv" in alone
        unknown = await client.get("/runs/compare/charts/colour?run=1&run=2")
        few = await notice_after(client, await client.get("/runs/compare/charts/reward?run=1"))
    assert unknown.status_code == 404
    assert "reward" in parsed(unknown).one("main").text, "the known charts"
    assert (few.tone, few.numbers) == ("bad", [2, 8, 1])
