"""Two runs on one page, with pools of the same name: cached data of one run never serves the other."""

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.runtime.folders.run_folders import LOCK, RUN, TOKEN, RunFolder
from tests.fakes.control_plane import TOKEN as RUN_TOKEN
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.recorded_run import run_folder
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import running_web
from tests.web.page_elements import parsed
from web.accounts.viewer import Viewer
from web.requests import responses
from web.security.roles import Grant, Resource, Role

pytestmark = pytest.mark.anyio

FIRST, SECOND = "reverse-0001", "reverse-0002"


@asynccontextmanager
async def active(folder: Path, *, dataflow: str, fleet: str) -> AsyncIterator[None]:
    """Creates the folder of the second run; the run counts as active until the block ends."""
    run_folder(folder, run=SECOND)
    facts = replace(RunFolder(folder).facts, dataflow=dataflow, fleet=fleet)
    (folder / RUN).write_text(json.dumps(asdict(facts)))
    (folder / TOKEN).write_text(RUN_TOKEN)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@asynccontextmanager
async def two_runs(directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yields an admin client of a page over two runs, each with a fleet that has the pool `eu`."""
    first, second = FakeControlPlane(sequence=150), FakeControlPlane(SyntheticRun(run=SECOND), sequence=150)
    async with (
        first.serving() as first_dataflow,
        second.serving() as second_dataflow,
        running_fleet(directory / "one", nodes=1) as fleet,
        running_fleet(directory / "other", nodes=1, pool={"max_nodes": 7}) as other_fleet,
        active(directory / "home" / "runs" / SECOND, dataflow=second_dataflow, fleet=other_fleet.address),
        running_web(directory / "web", first_dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_live(admin, sequence=150)
        for run in (FIRST, SECOND):
            await until_shown(admin, run)
        yield admin


async def until_shown(admin: httpx.AsyncClient, run: str) -> None:
    for _ in range(600):
        answer = await admin.get("/api/v1/pools/eu", params={"run": run})
        report = await admin.get("/api/v1/report", params={"run": run})
        if answer.status_code == report.status_code == 200 and report.json()["run"] == run:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{run} is not shown")


async def change(admin: httpx.AsyncClient, run: str, **fields: str) -> dict[str, Any]:
    """Changes the pool of one run; returns the pool."""
    pool = (await admin.get("/api/v1/pools/eu", params={"run": run})).json()
    form = {
        "observed_version": str(pool["version"]),
        "run": run,
        "reason": "a test",
        "key": f"{run} {fields}",
        **fields,
    }
    assert (await admin.post("/pools/eu/spec", data=form)).status_code == 303
    for _ in range(300):
        now: dict[str, Any] = (await admin.get("/api/v1/pools/eu", params={"run": run})).json()
        if now["version"] != pool["version"]:
            return now
        await asyncio.sleep(0.02)
    return now


async def test_an_undo_never_applies_the_bounds_of_another_runs_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with two_runs(tmp_path) as admin:
        changed = await change(admin, FIRST, max_nodes="9")
        before = (await admin.get("/api/v1/pools/eu", params={"run": SECOND})).json()
        form = {"observed_version": str(changed["version"]), "run": SECOND, "undo": "1", "key": "u", "reason": ""}
        await admin.post("/pools/eu/spec", data=form)
        page = (await admin.get("/pools/eu", params={"run": SECOND})).text
        after = (await admin.get("/api/v1/pools/eu", params={"run": SECOND})).json()

    assert changed["spec"]["max_nodes"] == 9
    assert after["spec"] == before["spec"]
    assert parsed(page).one("#flash")["data-code"] == "pool.undo_expired"


@pytest.mark.long
async def test_parts_of_two_runs_have_different_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with two_runs(tmp_path) as admin:
        tag = (await admin.get("/pools/eu/now", params={"run": FIRST})).headers["etag"]
        other = await admin.get("/pools/eu/now", params={"run": SECOND}, headers={"if-none-match": tag})

    assert other.status_code == 200


def test_tags_differ_by_run_by_viewer_and_by_what_they_may_do() -> None:
    ada = Viewer(user_id=1, name="ada", role=Role.VIEWER)
    grant = Grant(role=Role.OPERATOR, resource=Resource(run=FIRST, pool="eu"))
    cases = [
        (FIRST, ada),
        (SECOND, ada),
        (FIRST, replace(ada, user_id=2)),
        (FIRST, replace(ada, role=Role.OPERATOR)),
        (FIRST, replace(ada, scope=Role.VIEWER)),
        (FIRST, replace(ada, grants=(grant,))),
    ]
    tags = {responses.source_tag(run, viewer, "same") for run, viewer in cases}

    assert len(tags) == len(cases)
