"""Metadata, configuration and columns of runs, on their pages and in the list."""

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.runtime.folders.launch_facts import BASE_RECIPE, LaunchFacts, write_launch
from astraflow.runtime.folders.run_metadata import read_metadata
from tests.fakes.web import flash_of, running_web
from tests.web.live.test_machine_runs import ended_run, listed
from tests.web.page_elements import parsed
from tests.web.runs.test_run_list import filled, names, record
from web.live import machine_runs

pytestmark = pytest.mark.anyio

FORM = {"title": "Higher rate", "note": "first\r\nsecond <b>", "tags": "lr, sweep lr", "group": "rates"}


@pytest.fixture(autouse=True)
def fast_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_runs, "IMPORT_INTERVAL_S", 0.05)


def launched_run(name: str, *, rate: float) -> Path:
    """Creates the folder of an ended run with another learning rate than its recipe."""
    folder = ended_run(name, seconds=3)
    (folder / BASE_RECIPE).write_text(json.dumps({"optimizer": {"rate": 0.1}, "seed": 1}))
    (folder / "recipe.json").write_text(json.dumps({"optimizer": {"rate": rate}, "seed": 1}))
    write_launch(
        folder, LaunchFacts(recipe="quick", overrides=(f"optimizer.rate={rate}",), reason="a try", launched_at=900.0)
    )
    return folder


async def test_metadata_of_a_run_is_edited_audited_shown_and_shared_by_its_folder(tmp_path: Path) -> None:
    folder = launched_run("one", rate=0.2)
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        (row,) = await listed(client, 1)
        saved = await client.post(f"/runs/{row['id']}/metadata", data=FORM)
        message = await flash_of(client, saved)
        starred = await client.post(f"/runs/{row['id']}/star", data={"star": "true", "next": "/runs"})
        refused = await client.post(f"/runs/{row['id']}/metadata", data={"title": "x" * 200})
        refusal = await flash_of(client, refused)
        page = await client.get(f"/runs/{row['id']}")
        by_tag, by_other = [(await client.get(f"/runs?tag={tag}")).text for tag in ("sweep", "other")]
        (exported,) = (await client.get("/runs.json?star=1")).json()
        audited = (await client.get("/api/v1/audit?action=run.annotate")).json()["items"]

    assert "Saved" in message
    assert starred.headers["location"] == "/runs"
    assert "title" in refusal
    metadata = read_metadata(folder)
    assert (metadata.title, metadata.tags, metadata.is_starred) == ("Higher rate", ("lr", "sweep"), True)
    assert metadata.note == "first\nsecond <b>"
    head = parsed(page).one("header.run-head")
    assert "a try" in head.text, "the reason of the launch"
    assert "second <b>" in head.text
    assert names(by_tag) == ["Higher rate"] or "Higher rate" in by_tag
    assert "Higher rate" not in by_other
    assert (exported["title"], exported["tags"], exported["recipe"]) == ("Higher rate", "lr sweep", "quick")
    assert len(audited) == 3


async def test_metadata_of_a_run_elsewhere_is_in_the_database(tmp_path: Path) -> None:
    await filled(tmp_path, record("far", seconds=30))
    async with running_web(tmp_path, "") as web, web.logged_in() as client:
        await client.post("/runs/1/metadata", data=FORM)
        page = await client.get("/runs/1")
        configuration = await client.get("/runs/1/configuration")

    assert "Higher rate" in parsed(page).one("h1").text
    assert parsed(page).one("h1").one("span.state").text == "not connected"
    assert configuration.status_code == 200


async def test_programs_read_and_change_metadata_field_by_field(tmp_path: Path) -> None:
    folder = launched_run("one", rate=0.2)
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        (row,) = await listed(client, 1)
        address = f"/api/v1/runs/{row['id']}/metadata"
        await client.patch(address, json={"title": "Higher rate", "tags": ["sweep", "lr", "sweep"]})
        changed = await client.patch(address, json={"is_starred": True})
        refused = [(await client.patch(address, json=body)).status_code for body in ({"tags": ["a b"]}, {"other": 1})]
        missing = await client.patch("/api/v1/runs/99/metadata", json={})
        (in_list,) = (await client.get("/api/v1/runs")).json()["items"]
        about = (await client.get(f"/api/v1/runs/{row['id']}")).json()
        newest = (await client.get("/api/v1/audit?action=run.annotate")).json()["items"][0]

    expected = {"title": "Higher rate", "note": "", "tags": ["lr", "sweep"], "group": "", "is_starred": True}
    assert changed.json() == in_list["metadata"] == about["metadata"] == expected
    assert (refused, missing.status_code) == ([422, 422], 404)
    assert json.loads(newest["after"]) == {"is_starred": "True"}
    assert read_metadata(folder).title == "Higher rate"


async def test_the_list_sets_the_star_and_returns_to_the_same_page(tmp_path: Path) -> None:
    await filled(tmp_path, record("far", seconds=30))
    async with running_web(tmp_path, "") as web, web.logged_in() as client:
        form = parsed(await client.get("/runs/table?star=1")).all("form.inline")
        shown = parsed(await client.get("/runs/table?sort=name")).one("form.inline")
        fields = {field["name"]: field["value"] for field in shown.all("input")}
        starred = await client.post(shown["action"], data=fields)
        again = parsed(await client.get("/runs/table")).one("button.star")

    assert not form, "no run has a star"
    assert starred.headers["location"] == "/runs?sort=name"
    assert again["aria-pressed"] == "true"


async def test_only_operators_of_the_run_edit_its_metadata(tmp_path: Path) -> None:
    await filled(tmp_path, record("far", seconds=30))
    async with running_web(tmp_path, "") as web, web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        for path in ("/runs/1/metadata", "/runs/1/star", "/runs/77/star"):
            assert (await viewer.post(path, data=FORM)).status_code == 403, path
        assert (await viewer.patch("/api/v1/runs/1/metadata", json={})).status_code == 403
        assert not parsed(await viewer.get("/runs")).all("button.star")
        assert "/runs/1/metadata" not in (await viewer.get("/runs/1")).text


async def test_the_configuration_shows_the_changes_of_the_recipe_and_the_command(tmp_path: Path) -> None:
    launched_run("one", rate=0.2)
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        (row,) = await listed(client, 1)
        page = parsed(await client.get(f"/runs/{row['id']}/configuration"))

    assert [cell.text for cell in page.all("td.setting-value")] == ["0.1", "0.2"]
    assert "astraflow run quick --set optimizer.rate=0.2" in page.one("pre.command").text
    assert "optimizer.rate = 0.2" in page.one("pre.recipe-text").text


async def test_a_user_chooses_settings_and_metrics_as_columns_and_sorts_by_them(tmp_path: Path) -> None:
    for name, rate in (("one", 0.5), ("two", 0.25), ("three", 1e-05)):
        launched_run(name, rate=rate)
    key = "setting:optimizer.rate"
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        await listed(client, 3)
        offered = await client.get("/runs/columns")
        await client.post("/runs/columns", data={"column": [key, "metric:loss", "other"]})
        page = await client.get(f"/runs?sort={key}&order=up")
        rows: list[dict[str, Any]] = (await client.get(f"/runs.json?sort={key}&order=up")).json()

    assert f'value="{key}"' in offered.text
    assert [row["name"] for row in rows] == ["three", "two", "one"]
    assert [row[key] for row in rows] == [1e-05, 0.25, 0.5]
    assert "other" not in rows[0]
    assert 'aria-sort="ascending"' in page.text


async def test_a_run_of_a_terminal_has_its_logs_and_buttons(tmp_path: Path) -> None:
    folder = ended_run("one", seconds=3)
    (folder / "logs").mkdir()
    (folder / "logs" / "dataflow.log").write_text("it served\n")
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        (row,) = await listed(client, 1)
        head = parsed(await client.get(f"/runs/{row['id']}")).one("header.run-head")
        shown = await client.get("/launches/one")
        log = (await client.get("/launches/one/log?program=dataflow")).json()

    assert {"/launches/one", "/runs/new?of=one", f"/runs/{row['id']}/configuration"} <= set(head.links())
    assert "program=dataflow" in shown.text
    assert log["text"] == "it served\n"
