"""The list of runs: one table of recorded and launched runs; its address sets filters, order and page."""

import json
import re
from pathlib import Path

import pytest
from sqlmodel import Session

from astraflow.runtime.folders.launch_facts import LaunchFacts, write_launch
from astraflow.runtime.folders.run_folders import runs_folder
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.recorded_run import run_folder
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import parsed
from web.database.db import open_database
from web.database.tables import RunRecord
from web.history.report_json import report_to_json
from web.runs import list_queries

pytestmark = pytest.mark.anyio


def record(name: str, *, seconds: int, recipe: str = "reverse") -> RunRecord:
    return RunRecord(
        name=name,
        recipe=recipe,
        dataflow="x:1",
        started_at=1000.0,
        last_at=1000.0 + seconds,
        last_sequence=seconds,
        report_json=report_to_json(SyntheticRun(run=name, began_at=1000.0).report(seconds)),
    )


def launched(name: str, *, actor: str = "ada", recipe: str = "smoke") -> Path:
    """Creates the folder of a run that a page launched and that has ended; returns it."""
    folder = run_folder(runs_folder() / name, run=name)
    write_launch(folder, LaunchFacts(recipe=recipe, actor=actor, launched_at=900.0, reason="a look"))
    return folder


async def filled(directory: Path, *rows: RunRecord) -> None:
    database = open_database(directory, "")

    def add(session: Session) -> None:
        session.add_all(rows)

    await database.write(add)
    database.close()


def names(page: str) -> list[str]:
    return re.findall(r'<a class="row-link" href="[^"]+"><bdi>([^<]+)<', page)


async def test_a_launched_run_that_is_recorded_is_one_row_with_its_owner(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=60), record("two", seconds=90))
    launched("one")
    launched("three", actor="<b>eve</b>")
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        page = (await client.get("/runs")).text
        of_ada = (await client.get("/runs?owner=ada")).text
        rows = (await client.get("/runs.json?owner=ada")).json()

    assert sorted(names(page)) == ["one", "three", "two"]
    assert 'href="/runs/1"><bdi>one' in page
    assert 'href="/launches/three"' in page
    assert "<b>eve" not in page
    assert names(of_ada) == ["one"]
    assert [(row["name"], row["owner"], row["state"], row["policy"]) for row in rows] == [
        ("one", "ada", "ended", "solver")
    ]


async def test_the_list_is_sorted_filtered_and_paged_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_queries, "RUNS_PER_PAGE", 2)
    await filled(tmp_path, *(record(f"run-{seconds}", seconds=seconds) for seconds in (30, 120, 60)))
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        by_step = (await client.get("/runs?sort=steps&order=up")).text
        older = re.search(r'rel="next" href="([^"]+)"', by_step)
        assert older is not None
        rest = (await client.get(older[1].replace("&amp;", "&"))).text
        longest = (await client.get("/runs?sort=duration")).text
        filtered_page = (await client.get("/runs?text=RUN-6")).text
        none = (await client.get("/runs?text=nothing")).text
        odd = await client.get("/runs?sort=x&order=y&page=99999999&state=z")

    assert (names(by_step), names(rest)) == (["run-30", "run-60"], ["run-120"])
    assert 'aria-sort="ascending"' in by_step
    assert names(longest) == ["run-120", "run-60"]
    assert names(filtered_page) == ["run-60"]
    assert "No matches" in none
    assert odd.status_code == 200


@pytest.mark.long
async def test_exports_have_the_shown_rows(tmp_path: Path) -> None:
    await filled(tmp_path, *(record(f"run-{seconds}", seconds=seconds) for seconds in (30, 120)))
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        lines = (await client.get("/runs.csv?sort=reward&text=run-1")).text.splitlines()
        rows = json.loads((await client.get("/runs.json?sort=reward&order=up")).text)

    assert lines[0].startswith("id,name,state,recipe,owner,policy,steps,version,reward,wait,dollars")
    assert [line.split(",")[1] for line in lines[1:]] == ["run-120"]
    assert [row["name"] for row in rows] == ["run-30", "run-120"]
    assert rows[0]["reward"] < rows[1]["reward"]


@pytest.mark.long
async def test_a_live_run_is_listed_by_its_state(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        for _ in range(100):
            page = (await client.get("/runs?state=on")).text
            if names(page):
                break
        over = (await client.get("/runs?state=over")).text

    assert names(page) == [fake.synthetic_run.run]
    (state,) = parsed(page).one("tbody").all(".state")
    assert (state.tone, state.text) == ("good", "live")
    assert names(over) == []
