"""Two to four runs beside each other, and what their pages draw from what is kept."""

import html
import json
import re
from pathlib import Path

import pytest

from tests.fakes.web import flash_of, running_web
from tests.fakes.world import World
from tests.web.reading.test_run_list import filled, launched, record
from web.db import open_database
from web.history import reading, writing
from web.history.points import point_of
from web.history.samples import NodeBuckets, point_samples
from web.present.scales import Window
from web.present.timeline import timeline

pytestmark = pytest.mark.anyio


async def recorded(directory: Path, run_id: int, world: World, *, seconds: int) -> None:
    """What the recorder would keep of a run."""
    database, buckets = open_database(directory, ""), NodeBuckets()
    samples = []
    for second in range(1, seconds + 1):
        report = world.report(second)
        samples += [*point_samples(point_of(report)), *buckets.add(report)]
    await database.do(lambda session: writing.add(session, run_id, samples, names={}))
    database.close()


async def test_runs_are_drawn_over_each_other_and_differing_settings_are_listed(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=60), record("two", seconds=90))
    await filled(tmp_path, launched("one", tmp_path), launched("two", tmp_path))
    for number, (name, rate) in enumerate((("one", 1e-3), ("two", 1e-4)), start=1):
        (tmp_path / name).mkdir()
        recipe = {"trainer": {"learning_rate": rate, "seed": 1}, "note": "<script>alert(1)</script>" * number}
        (tmp_path / name / "recipe.json").write_text(json.dumps(recipe))
        await recorded(tmp_path, number, World(run=name, began_at=1000.0), seconds=30 * number + 30)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        by_step = (await client.get("/runs/compare?run=1&run=2")).text
        by_time = (await client.get("/runs/compare?run=1&run=2&by=time")).text
        lines = (await client.get("/runs/compare.csv?run=1&run=2&by=step")).text.splitlines()
        told_by_api = (await client.get("/api/v1/comparison?run=1&run=2")).json()
        rows = (await client.get("/runs/compare.json?run=1&run=2&by=step")).json()
        alone = await client.get("/runs/compare?run=1")
        told = await flash_of(client, alone)
        unknown = await client.get("/runs/compare?run=1&run=77")

    for page in (by_step, by_time):
        assert page.count('class="line one" d="M') >= 4
        assert page.count('class="line two" d="M') >= 4
        assert "<code>trainer.learning_rate</code>" in page
        assert "<code>0.001</code>" in page
        assert "trainer.seed" not in page
        assert "<script>alert" not in page
    assert [one["name"] for one in told_by_api["runs"]] == ["one", "two"]
    assert {"key": "trainer.learning_rate", "values": ["0.001", "0.0001"]} in told_by_api["differences"]
    assert [dict(zip(told_by_api["columns"], row, strict=True)) for row in told_by_api["rows"]] == rows
    assert "two ends highest, at 0." in by_step
    assert ">start<" in by_time
    assert ">start<" not in by_step
    assert lines[0].startswith("id,run,policy,step,")
    assert {line.split(",")[1] for line in lines[1:]} == {"one", "two"}
    assert "Choose 2 to 4 runs" in told
    assert unknown.status_code == 404


async def test_a_recorded_run_shows_loss_timeline_ladder_and_events_over_any_range(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, World(run="one", began_at=1000.0), seconds=150)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        whole = (await client.get("/runs/1")).text
        part = (await client.get("/runs/1?from=1020&to=1080")).text

    for page in (whole, part):
        assert "Loss of each step" in page
        assert "Tokens written for each row of a batch" in page
        assert "It computed 87\u202f% of its time" in page
        assert page.count("rung-row") == 2
    assert "Node lost: n9" in whole
    assert "Node lost: n9" not in part
    assert 'value="1970-01-01T00:17:00"' in part


async def test_the_live_page_takes_the_course_of_a_run_and_the_titles_of_its_charts(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, World(run="one", began_at=1000.0), seconds=150)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        page = (await client.get("/runs/1")).text
        course = (await client.get("/runs/1/course?policy=solver")).text
        part = (await client.get("/runs/1/course?policy=solver&from=1020&to=1080")).text

    assert "<!doctype" not in course
    assert course.count("rung-row") == part.count("rung-row") == 2
    assert "Node lost: n9" in course
    assert "Node lost: n9" not in part
    titles = re.findall(r'<h2 class="chart-finding" id="(finding-\w+)" hx-swap-oob="true">([^<]+)<', course)
    assert {"finding-reward", "finding-wait", "finding-loss"} <= {name for name, _ in titles}
    for name, title in titles:
        assert f'id="{name}">{title}<' in page or f'id="{name}"' not in page, "the page begins with the same"


async def test_the_nodes_that_were_farthest_behind_are_found(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=150))
    await recorded(tmp_path, 1, World(nodes=("node-a", "slow", "node-c"), began_at=1000.0), seconds=150)
    database = open_database(tmp_path, "")
    found = await database.look(lambda session: reading.leaders(session, 1, "node", "lag", at_most=1))
    every = await database.look(lambda session: reading.leaders(session, 1, "node", "lag", at_most=8))
    database.close()

    assert found == ["slow"]
    assert every == ["node-a", "node-c", "slow"]


def test_a_timeline_has_no_holes_where_no_step_ended_and_begins_anew_with_the_run() -> None:
    counted = [(0.0, 0.0), (10.0, 8.0), (20.0, 8.0), (30.0, 16.0), (40.0, 0.0), (50.0, 8.0)]
    rows = [(at, {"compute_s": done, "wait_s": done / 4, "publish_s": 0.0}) for at, done in counted]

    found = timeline(rows, Window(start=0.0, end=50.0, range_s=None))

    stretches = [(share.x, share.x + share.width) for share in found.shares if share.part == "compute"]
    assert stretches == [(0.0, 200.0), (200.0, 600.0), (800.0, 1000.0)]
    assert {round(share.height) for share in found.shares if share.part == "wait"} == {20}
    assert found.finding == "It computed 80\u202f% of its time and waited 20\u202f%"


async def test_each_chart_of_a_comparison_has_its_files_its_table_and_a_link(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=60), record("two", seconds=90))
    for number in (1, 2):
        await recorded(tmp_path, number, World(run=str(number), began_at=1000.0), seconds=30 * number + 30)
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        for by in ("step", "time"):
            page = html.unescape((await client.get(f"/runs/compare?run=1&run=2&by={by}")).text)
            files = re.findall(r'href="(/runs/compare/charts/(\w+)\.csv\?[^"]+)"', page)
            assert {"reward", "wait", "loss"} <= {name for _, name in files}
            for address, name in files:
                lines = (await client.get(address)).text.splitlines()
                rows = (await client.get(address.replace(".csv", ".json"))).json()
                alone = (await client.get(address.replace(".csv", ""))).text
                assert lines[0].startswith(f"id,run,policy,{by},")
                assert len(lines) - 1 == len(rows) > 0, address
                assert {row["run"] for row in rows} == {"one", "two"}
                assert "The same as a table" in alone
                assert len(re.findall(r"<tr><td", alone)) > 5, address
                assert f"/runs/compare/charts/{name}.csv" in alone
        unknown = await client.get("/runs/compare/charts/colour?run=1&run=2")
        few = await flash_of(client, await client.get("/runs/compare/charts/reward?run=1"))
    assert unknown.status_code == 404
    assert "their charts are reward" in html.unescape(unknown.text)
    assert "Choose 2 to 4 runs" in few
