"""`astraflow runs` against a real page, and `astraflow view` of a run directory."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from astraflow.runtime.runs import RunFacts
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.web import RunningWeb, running_web, shown_secret
from tests.fakes.world import World
from web.db import open_database
from web.report_json import report_to_json
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


def run_directory(path: Path) -> Path:
    """As a run leaves it."""
    path.mkdir()
    facts = RunFacts(
        run="reverse-0001",
        recipe="reverse",
        seed=1,
        started_at="2026-01-01T00:00:00+00:00",
        release="0",
        commit="",
        python="3",
        pid=1,
    )
    (path / "run.json").write_text(json.dumps(asdict(facts)))
    (path / "recipe.json").write_text("{}")
    return path


async def test_a_run_directory_is_reopened_to_look_at_and_nothing_in_it_changes(tmp_path: Path) -> None:
    directory = run_directory(tmp_path / "run")
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
    before = {file.name: file.read_bytes() for file in (directory / "web").iterdir()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "astraflow.cli", "view", str(directory)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with httpx.AsyncClient(follow_redirects=True, timeout=30) as client:
            listed = await client.get(url)
            run = await client.get(httpx.URL(url).join("/runs/1"))
            refused = await client.get(httpx.URL(url).join("/runs/new"))
    finally:
        process.terminate()
        await process.wait()

    assert listed.url.path == "/runs"
    assert "reverse-0001" in listed.text
    assert "The counts balance" in run.text
    assert refused.status_code == 403
    assert "only shows what was recorded" in refused.text
    assert process.returncode == 0
    assert {file.name: file.read_bytes() for file in (directory / "web").iterdir()} == before


async def test_a_run_without_a_page_says_what_there_is(tmp_path: Path) -> None:
    code, _, problem = await astraflow("view", str(run_directory(tmp_path / "run")))
    assert code != 0
    assert "ran without its page (--no-web)" in problem
    assert "astraflow run" in problem

    code, _, problem = await astraflow("view", str(tmp_path))
    assert code != 0
    assert "is not a run directory" in problem
