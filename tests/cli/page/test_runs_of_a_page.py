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

from tests import make
from tests.fakes.forking import ForkingProgram
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web, shown_secret

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
def cli(forking_cli: ForkingProgram) -> ForkingProgram:
    return forking_cli


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningWeb]:
    """Page whose launches finish immediately."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    async with running_web(tmp_path / "web", "") as running:
        yield running


async def astraflow(cli: ForkingProgram, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Runs a command; returns the exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(*cli.command, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, problem = await process.communicate()
    return process.returncode or 0, out.decode(), problem.decode()


async def test_runs_can_be_launched_listed_resumed_and_read_over_the_page(
    page: RunningWeb, cli: ForkingProgram
) -> None:
    async with page.logged_in() as admin:
        token_response = await admin.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
        known = {"ASTRAFLOW_WEB": page.address, "ASTRAFLOW_WEB_TOKEN": shown_secret(token_response)}
        launch = ("runs", "launch", "smoke", "--set", "stop.steps=7", "--reason", "a look", "--key", "k1", "--json")
        code, out, problem = await astraflow(cli, *launch, **known)
        assert code == 0, problem
        launched = json.loads(out)
        _, again, _ = await astraflow(cli, *launch, **known)
        assert json.loads(again)["name"] == launched["name"], "the same key launches once"
        _, listed, _ = await astraflow(cli, "runs", "list", "--json", **known)
        assert [run["name"] for run in json.loads(listed)] == [launched["name"]]
        code, logged, _ = await astraflow(cli, "runs", "logs", launched["name"], **known)
        assert (code, logged) == (0, "began\nended\n")
        code, _, _ = await astraflow(cli, "runs", "resume", launched["name"], "--reason", "again", **known)
        assert code == 0
        code, _, problem = await astraflow(cli, "runs", "stop", launched["name"], "--reason", "enough", **known)
        assert code != 0
        assert "[launch.ended]" in problem
        audit = (await admin.get("/audit.csv")).text

    assert "run.launch" in audit
    assert "a look" in audit


@pytest.mark.long
async def test_refused_launches_print_a_one_line_error(page: RunningWeb, cli: ForkingProgram) -> None:
    async with page.logged_in() as admin:
        token_response = await admin.post("/settings/tokens", data={"name": "ci", "scope": "viewer", "days": "1"})
        known = {"ASTRAFLOW_WEB": page.address, "ASTRAFLOW_WEB_TOKEN": shown_secret(token_response)}
        results = {
            "[token.scope_too_low]": await astraflow(cli, "runs", "launch", "smoke", "--reason", "x", **known),
            "ASTRAFLOW_WEB": await astraflow(cli, "runs", "list", ASTRAFLOW_WEB="", ASTRAFLOW_WEB_TOKEN="x"),
            "under Settings": await astraflow(cli, "runs", "list", "--web", page.address, ASTRAFLOW_WEB_TOKEN=""),
            "[cli.unencrypted_token]": await astraflow(cli, "runs", "list", "--web", "http://example.org", **known),
            "'http://127.0.0.1:9/a'": await astraflow(cli, "runs", "list", "--web", "http://127.0.0.1:9/a/", **known),
            "[page.unreachable]": await astraflow(cli, "runs", "list", "--web", "http://127.0.0.1:9", **known),
            "[launch.recipe_required]": await astraflow(cli, "runs", "launch", "--reason", "x", **known),
        }
    for words, (code, _, problem) in results.items():
        assert code != 0, words
        assert problem.startswith("error: "), problem
        assert words in problem


@pytest.mark.long
async def test_viewing_a_run_directory_is_read_only(tmp_path: Path) -> None:
    directory = run_folder(tmp_path / "run")
    archive = recorded_archive(directory)
    fill(archive, reports=(SyntheticRun().report(150),))
    archive.close()
    before = contents(directory)
    async with viewed(directory) as (client, listed):
        run = await client.get("/runs/1")
        refused = await client.get("/runs/new")

    assert listed.url.path == "/runs"
    assert "reverse-0001" in listed.text
    assert "The counts balance" in run.text
    assert 'id="evaluations"' in run.text
    assert refused.status_code == 403
    assert "This page is read-only" in refused.text
    assert contents(directory) == before


@pytest.mark.long
async def test_a_reopened_run_has_its_charts_trajectories_and_evaluations(tmp_path: Path) -> None:
    directory, synthetic_run = run_folder(tmp_path / "run"), SyntheticRun(began_at=1200.0)
    archive = recorded_archive(directory)
    reports = tuple(synthetic_run.report(second) for second in range(1, 151))
    fill(archive, rounds=(make.round_report(1),), reports=reports)
    archive.close()
    before = contents(directory)
    async with viewed(directory) as (client, listed):
        run = (await client.get("/runs/1")).text
        listing = (await client.get("/runs/1/trajectories?min_reward=1&max_reward=1")).text
        group = await client.get("/runs/1/groups/train:2")
        page = (await client.get("/runs/1/trajectories/1")).text
        steps = (await client.get("/runs/1/training.json")).json()

    metrics = {stream.training.steps: stream.training.metrics for report in reports for stream in report.streams}
    archived = [row["step"] for row in steps]
    assert archived == sorted(set(archived)), "one for each archived report, by second and earlier by minute"
    assert max(metrics) == archived[-1]
    assert all({name: row[name] for name in metrics[row["step"]]} == metrics[row["step"]] for row in steps)
    assert "reverse-0001" in listed.text
    assert "Recorded; the run ended at 1970-01-01 00:22:30 UTC." in run
    assert 'id="samples"' in run
    assert "min_reward=1.0" in run, "histogram bars are links"
    assert '<th scope="row">1</th>' in run.partition('id="evaluations"')[2]
    assert "answer 3.0" in listing
    assert "answer 3.1" not in listing
    assert group.status_code == 200
    assert "answer 1.0" in page
    assert contents(directory) == before


@pytest.mark.long
async def test_viewing_a_run_without_readable_records_is_refused(tmp_path: Path, cli: ForkingProgram) -> None:
    code, _, problem = await astraflow(cli, "view", str(run_folder(tmp_path / "run")))
    assert code != 0
    assert "dataflow/history.sqlite" in problem
    assert "astraflow run" in problem

    recorded_archive(tmp_path / "run").close()
    code, _, problem = await astraflow(cli, "view", str(tmp_path / "run"))
    assert code != 0
    assert "[history.no_report]" in problem

    code, _, problem = await astraflow(cli, "view", str(tmp_path))
    assert code != 0
    assert "[run_folder.invalid]" in problem


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@asynccontextmanager
async def viewed(directory: Path) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.Response]]:
    """Runs `astraflow view` in a separate process; yields an HTTP client and the first page."""
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
