"""`astraflow runs` against a real page, and `astraflow view` of a run directory."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from astraflow.runtime.runs import RunFolder
from tests import make
from tests.fakes.kept_run import archive_of, fill, run_folder
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.web import RunningWeb, running_web, shown_secret
from tests.fakes.world import World
from web.db import open_database
from web.feed.report_json import report_to_json
from web.history.retelling import retell
from web.tables import RunRecord

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningWeb]:
    """A page whose launches are over at once."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    async with running_web(tmp_path / "web", "") as running:
        yield running


async def astraflow(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Code, output and what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "astraflow.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, problem = await process.communicate()
    return process.returncode or 0, out.decode(), problem.decode()


async def test_runs_are_launched_listed_resumed_and_read_through_the_page(page: RunningWeb) -> None:
    async with page.logged_in() as admin:
        made = await admin.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
        known = {"ASTRAFLOW_WEB": page.address, "ASTRAFLOW_WEB_TOKEN": shown_secret(made)}
        asked = ("runs", "launch", "smoke", "--set", "stop.steps=7", "--reason", "a look", "--key", "k1", "--json")
        code, out, problem = await astraflow(*asked, **known)
        assert code == 0, problem
        launched = json.loads(out)
        _, again, _ = await astraflow(*asked, **known)
        assert json.loads(again)["name"] == launched["name"], "the same key launches once"
        _, listed, _ = await astraflow("runs", "list", "--json", **known)
        assert [one["name"] for one in json.loads(listed)] == [launched["name"]]
        code, logged, _ = await astraflow("runs", "logs", launched["name"], **known)
        assert (code, logged) == (0, "it began\nit ended\n")
        code, _, _ = await astraflow("runs", "resume", launched["name"], "--reason", "again", **known)
        assert code == 0
        code, _, problem = await astraflow("runs", "stop", launched["name"], "--reason", "enough", **known)
        assert code != 0
        assert "has ended already" in problem
        audit = (await admin.get("/audit.csv")).text

    assert "run.launch" in audit
    assert "a look" in audit


async def test_what_is_missing_or_refused_is_a_sentence(page: RunningWeb) -> None:
    async with page.logged_in() as admin:
        made = await admin.post("/settings/tokens", data={"name": "ci", "scope": "viewer", "days": "1"})
        known = {"ASTRAFLOW_WEB": page.address, "ASTRAFLOW_WEB_TOKEN": shown_secret(made)}
        said = {
            "role operator": await astraflow("runs", "launch", "smoke", "--reason", "x", **known),
            "ASTRAFLOW_WEB": await astraflow("runs", "list", ASTRAFLOW_WEB="", ASTRAFLOW_WEB_TOKEN="x"),
            "under Settings": await astraflow("runs", "list", "--web", page.address, ASTRAFLOW_WEB_TOKEN=""),
            "unencrypted": await astraflow("runs", "list", "--web", "http://example.org", **known),
            "does not answer": await astraflow("runs", "list", "--web", "http://127.0.0.1:9", **known),
            "one of them": await astraflow("runs", "launch", "--reason", "x", **known),
        }
    for words, (code, _, problem) in said.items():
        assert code != 0, words
        assert problem.startswith("error: "), problem
        assert words in problem


async def test_a_run_directory_is_reopened_to_look_at_and_nothing_in_it_changes(tmp_path: Path) -> None:
    directory = run_folder(tmp_path / "run")
    database = open_database(directory / "web", "")
    record = RunRecord(
        name="reverse-0001",
        recipe="reverse",
        dataflow="x:1",
        started_at=1000.0,
        last_at=1150.0,
        last_sequence=150,
        report_json=report_to_json(World().report(150)),
    )
    await database.do(lambda session: session.add(record))
    database.close()
    before = contents(directory)
    async with viewed(directory) as (client, listed):
        run = await client.get("/runs/1")
        refused = await client.get("/runs/new")

    assert listed.url.path == "/runs"
    assert "reverse-0001" in listed.text
    assert "The counts balance" in run.text
    assert "There are no evaluations to look at" in run.text
    assert refused.status_code == 403
    assert "only shows what was recorded" in refused.text
    assert contents(directory) == before


@pytest.mark.parametrize("had_page", [True, False])
async def test_a_reopened_run_has_its_charts_trajectories_and_evaluations(tmp_path: Path, had_page: bool) -> None:
    directory, world = run_folder(tmp_path / "run"), World(began_at=1200.0)
    archive = archive_of(directory)
    reports = tuple(world.report(second) for second in range(1, 151))
    fill(archive, rounds=(make.round_report(1),), reports=reports)
    archive.close()
    if had_page:
        database = open_database(directory / "web", "")
        await retell(RunFolder(directory), database)
        database.close()
    before = contents(directory)
    async with viewed(directory) as (client, listed):
        run = (await client.get("/runs/1")).text
        found = (await client.get("/runs/1/trajectories?min_reward=1&max_reward=1")).text
        group = await client.get("/runs/1/groups/train:2")
        one = (await client.get("/runs/1/trajectories/1")).text

    assert "reverse-0001" in listed.text
    assert "Recorded; the run ended at 1970-01-01 00:22:30 UTC." in run
    assert 'id="samples"' in run
    assert "min_reward=1.0" in run, "a bar of the histogram leads on"
    assert '<th scope="row">1</th>' in run.partition('id="evaluations"')[2]
    assert "answer 3.0" in found
    assert "answer 3.1" not in found
    assert group.status_code == 200
    assert "answer 1.0" in one
    assert contents(directory) == before


async def test_a_run_that_kept_nothing_says_what_there_is(tmp_path: Path) -> None:
    code, _, problem = await astraflow("view", str(run_folder(tmp_path / "run")))
    assert code != 0
    assert "has neither web/web.sqlite nor dataflow/history.sqlite" in problem
    assert "astraflow run" in problem

    archive_of(tmp_path / "run").close()
    code, _, problem = await astraflow("view", str(tmp_path / "run"))
    assert code != 0
    assert "holds no report that can be read" in problem

    code, _, problem = await astraflow("view", str(tmp_path))
    assert code != 0
    assert "is not a run directory" in problem


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@asynccontextmanager
async def viewed(directory: Path) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.Response]]:
    """`astraflow view` of it in a process of its own: a browser, and the page that it opens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "astraflow.cli", "view", str(directory)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        base = str(httpx.URL(url).join("/"))
        async with httpx.AsyncClient(base_url=base, follow_redirects=True, timeout=30) as client:
            yield client, await client.get(url)
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0
