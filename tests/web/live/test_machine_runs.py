"""Runs that a page did not follow: recorded from their folders, and their history when they are opened."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.runtime.folders.run_folders import runs_folder
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import running_web
from tests.web.page_elements import parsed
from web.live import machine_runs

pytestmark = pytest.mark.anyio

SECONDS = 40


def ended_run(name: str, *, seconds: int = SECONDS) -> Path:
    """Creates the folder of a run that ended after so many reports."""
    folder = run_folder(runs_folder() / name, run=name)
    archive = recorded_archive(folder)
    synthetic_run = SyntheticRun(run=name, began_at=1000.0)
    fill(archive, reports=tuple(synthetic_run.report(second) for second in range(1, seconds + 1)))
    archive.close()
    return folder


async def listed(client: object, count: int) -> list[dict[str, object]]:
    """Returns the rows of the list once it has so many runs with a record."""
    deadline = time.monotonic() + 30
    while True:
        rows: list[dict[str, object]] = (await client.get("/runs.json")).json()  # type: ignore[attr-defined]  # an HTTP client
        if len(rows) == count and all(row["id"] for row in rows):
            return rows
        assert time.monotonic() < deadline, rows
        await asyncio.sleep(0.05)


async def test_runs_of_the_machine_are_listed_compared_and_go_with_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_runs, "IMPORT_INTERVAL_S", 0.05)
    first, _ = ended_run("one"), ended_run("two", seconds=20)
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        rows = await listed(client, 2)
        ids = {row["name"]: row["id"] for row in rows}
        start = await client.get("/")
        run = await client.get(f"/runs/{ids['one']}")
        points = (await client.get(f"/runs/{ids['one']}/charts/reward.json")).json()
        compared = await client.get(f"/runs/compare?run={ids['one']}&run={ids['two']}")
        ended_run("three", seconds=3)
        await listed(client, 3)
        shutil.rmtree(first)
        rest = await listed(client, 2)

    assert {(row["name"], row["state"], row["recipe"]) for row in rows} == {
        ("one", "ended", "reverse"),
        ("two", "ended", "reverse"),
    }
    assert start.headers["location"] == "/runs", "without a run to follow, the first page is the list"
    assert parsed(run).one("h1").one("span.state").text == "ended"
    assert len(points) >= SECONDS - 2, "the history of an opened run is complete"
    assert compared.status_code == 200
    assert {row["name"] for row in rest} == {"two", "three"}


async def test_a_run_is_shown_while_its_history_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_runs, "PATIENCE_S", 0.0)
    ended_run("one")
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        (row,) = await listed(client, 1)
        shown = await client.get(f"/runs/{row['id']}")
        deadline = time.monotonic() + 30
        while parsed(await client.get(f"/runs/{row['id']}")).has(".notice[hx-trigger]"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    assert shown.status_code == 200


async def test_steps_after_the_last_report_are_copied_when_an_ended_run_is_opened(tmp_path: Path) -> None:
    folder = ended_run("one")
    run = SyntheticRun(run="one", began_at=1000.0)
    steps = run.training_steps(SECONDS, TrainingStepQuery(policy=PolicyId("solver"))).steps
    async with running_web(tmp_path / "web", "") as web, web.logged_in() as client:
        (row,) = await listed(client, 1)
        await client.get(f"/runs/{row['id']}")
        archive = recorded_archive(folder)
        fill(archive, groups=0, steps=steps)
        archive.close()
        deadline = time.monotonic() + 30
        while len(rows := (await client.get(f"/runs/{row['id']}/training.json")).json()) < len(steps):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    assert [row["step"] for row in rows] == [step.step for step in steps]
