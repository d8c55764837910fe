"""Parts of pages that are read again and again: what is new comes, and nothing travels while nothing is."""

import asyncio
import html
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from fastapi.responses import HTMLResponse

from astraflow.client.fleet_plane import FleetPlaneClient
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, running_web
from web.reading import again

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    async with running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as running:
        yield running


@pytest.fixture
async def page(fake: FakeControlPlane, fleet: RunningFleet, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, fleet=fleet.address) as running:
        await running.until_fed()
        yield running


async def until_same(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Read it until there is nothing new: a busy machine may find the services late, which is something new."""
    shown = await client.get(path)
    for _ in range(50):
        assert shown.status_code == 200, shown.text
        tag = shown.headers["etag"]
        shown = await client.get(path, headers={"if-none-match": tag})
        if shown.status_code == 304:
            return shown
    raise AssertionError(f"{path} is never the same")


@pytest.mark.parametrize(
    "path",
    [
        "/pools/table",
        "/pools/eu/now",
        "/runs/table",
        "/decisions/newer?than=f0r0",
        "/audit/newer?than=0",
        "/maintainer/lately",
        "/weights/tables",
    ],
)
async def test_what_is_as_it_was_is_answered_with_nothing(page: RunningWeb, path: str) -> None:
    async with page.logged_in() as client:
        same = await until_same(client, path)
    assert same.content == b""
    assert same.headers["etag"]


async def test_a_pool_of_which_nothing_moved_is_read_from_its_ledger_now_and_then_only(
    page: RunningWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    instances = FleetPlaneClient.instances

    async def noted(self: FleetPlaneClient, **of: Any) -> Any:
        asked.append(of["pool"])
        return await instances(self, **of)

    monkeypatch.setattr(FleetPlaneClient, "instances", noted)
    monkeypatch.setattr("web.reading.pool_page.UNMOVED_S", 1e9)
    async with page.logged_in() as client:
        same = await until_same(client, "/pools/eu/now")
        asked.clear()
        again = await client.get("/pools/eu/now", headers={"if-none-match": same.headers["etag"]})
        assert (again.status_code, asked) == (304, [])
        monkeypatch.setattr("web.reading.pool_page.UNMOVED_S", 1e8)  # that time is over
        await client.get("/pools/eu/now", headers={"if-none-match": same.headers["etag"]})
        assert asked == ["eu"]


async def test_what_happens_to_a_pool_is_in_what_its_page_reads_again_and_its_forms_are_not(
    page: RunningWeb, fleet: RunningFleet
) -> None:
    async with page.logged_in() as client:
        same = await until_same(client, "/pools/eu/now")
        held = await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a visit", "key": "h"})
        assert held.status_code == 303
        await fleet.parts.want(3)
        now = await client.get("/pools/eu/now", headers={"if-none-match": same.headers["etag"]})
        assert now.status_code == 200
        for text in ("a visit", "Release", "intended", "no node is taken away", "hx-swap-oob"):
            assert text in now.text, text
        for field in ('name="target"', 'name="min_nodes"', 'name="reason"'):
            assert field not in now.text, f"{field} is typed into"


async def test_ages_alone_are_nothing_new() -> None:
    request = Request({"type": "http", "headers": [], "method": "GET", "path": "/"})
    first = again.answered(request, HTMLResponse('<time data-behavior="ago" data-at="1.0">2 s ago</time>'))
    for text, status in (
        ('<time data-behavior="ago" data-at="1.0">3 s ago</time>', 304),
        ('<time data-behavior="ago" data-at="2.0">2 s ago</time>', 200),
    ):
        asking = Request(
            {
                "type": "http",
                "headers": [(b"if-none-match", first.headers["etag"].encode())],
                "method": "GET",
                "path": "/",
            }
        )
        assert again.answered(asking, HTMLResponse(text)).status_code == status, text


def counted(page: str) -> str:
    """The address that a page asks for how much is new."""
    return html.unescape(page.partition('id="newer" hx-get="')[2].partition('"')[0])


async def test_decisions_and_entries_that_came_meanwhile_are_counted(page: RunningWeb) -> None:
    async with page.logged_in() as client:
        decisions = counted((await client.get("/decisions")).text)
        entries = counted((await client.get("/audit?action=pool.hold")).text)
        assert [(await client.get(path)).text.strip() for path in (decisions, entries)] == ["", ""]
        for number in range(2):
            await client.post("/pools/eu/hold", data={"minutes": "1", "reason": "a visit", "key": f"k{number}"})
        told = [(await client.get(path)).text for path in (decisions, entries)]
        other = (await client.get(decisions + "&pool=us")).text.strip()
        odd = await client.get("/decisions/newer?than=word")
    assert "2 new: show them" in told[0]
    assert "2 new: show them" in told[1]
    assert 'href="/audit?action=pool.hold"' in told[1]
    assert other == "", "the filter holds for what is new"
    assert odd.status_code == 422


async def test_the_list_of_runs_reads_its_rows_again_by_the_same_address(
    page: RunningWeb, fake: FakeControlPlane
) -> None:
    async with page.logged_in() as client:
        shown = (await client.get("/runs?sort=reward&state=on")).text
        assert 'hx-get="/runs/table?state=on&amp;sort=reward"' in shown
        deadline = time.monotonic() + 60
        while 'id="run-1"' not in (table := (await client.get("/runs/table?state=on&sort=reward")).text):
            assert time.monotonic() < deadline, "the run was not recorded"
            await asyncio.sleep(0.1)
        assert "<form class" not in table
        assert "<html" not in table
        over = (await client.get("/runs/table?state=over")).text
    assert "No run is like that" in over
