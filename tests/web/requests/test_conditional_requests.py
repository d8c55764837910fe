"""Conditional requests for page parts: the server sends changed parts and answers 304 for unchanged ones."""

import asyncio
import html
import time
from typing import Any

import httpx
import pytest
from fastapi import Request
from fastapi.responses import HTMLResponse

from astraflow.client.fleet_plane import FleetPlaneClient
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from web.requests import responses

pytestmark = pytest.mark.anyio


async def until_same(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Requests a path until the answer is 304: on a busy machine, services that answer late change the page."""
    shown = await client.get(path)
    for _ in range(50):
        assert shown.status_code == 200, shown.text
        tag = shown.headers["etag"]
        shown = await client.get(path, headers={"if-none-match": tag})
        if shown.status_code == 304:
            return shown
    raise AssertionError(f"{path} is never the same")


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [
        "/pools/table",
        "/pools/eu/now",
        "/runs/table",
        "/decisions/newer?than=f0r0",
        "/audit/newer?than=0",
        "/maintainer/recent",
        "/weights/tables",
    ],
)
async def test_an_unchanged_page_is_answered_without_a_body(pages: RunningWeb, path: str) -> None:
    async with pages.logged_in() as client:
        same = await until_same(client, path)
    assert same.content == b""
    assert same.headers["etag"]


@pytest.mark.long
async def test_an_unchanged_pool_is_read_from_its_ledger_rarely(
    pages: RunningWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools_read: list[str] = []
    instances = FleetPlaneClient.instances

    async def noted(self: FleetPlaneClient, **of: Any) -> Any:
        pools_read.append(of["pool"])
        return await instances(self, **of)

    monkeypatch.setattr(FleetPlaneClient, "instances", noted)
    monkeypatch.setattr("web.pools.queries.RECHECK_S", 1e9)
    async with pages.logged_in() as client:
        same = await until_same(client, "/pools/eu/now")
        pools_read.clear()
        again = await client.get("/pools/eu/now", headers={"if-none-match": same.headers["etag"]})
        assert (again.status_code, pools_read) == (304, [])
        monkeypatch.setattr("web.pools.queries.RECHECK_S", 1e8)  # the interval has passed
        await client.get("/pools/eu/now", headers={"if-none-match": same.headers["etag"]})
        assert pools_read == ["eu"]


@pytest.mark.long
async def test_the_reloaded_part_of_a_pool_page_has_changes_and_no_forms(
    pages: RunningWeb, fleet: RunningFleet
) -> None:
    async with pages.logged_in() as client:
        same = await until_same(client, "/pools/eu/now")
        held = await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a visit", "key": "h"})
        assert held.status_code == 303
        await fleet.parts.want(3)
        now = await client.get("/pools/eu/now", headers={"if-none-match": same.headers["etag"]})
        assert now.status_code == 200
        for text in ("a visit", "End the hold", "intended", "no node is removed", "hx-swap-oob"):
            assert text in now.text, text
        for field in ('name="target"', 'name="min_nodes"', 'name="reason"'):
            assert field not in now.text, f"{field} is typed into"


async def test_a_change_of_ages_alone_keeps_the_etag() -> None:
    request = Request({"type": "http", "headers": [], "method": "GET", "path": "/"})
    first = responses.with_etag(request, HTMLResponse('<time data-behavior="ago" data-at="1.0">2 s ago</time>'))
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
        assert responses.with_etag(asking, HTMLResponse(text)).status_code == status, text


def counted(page: str) -> str:
    """Returns the address at which a page requests the count of new entries."""
    return html.unescape(page.partition('id="newer" hx-get="')[2].partition('"')[0])


async def test_new_decisions_and_audit_entries_are_counted(pages: RunningWeb) -> None:
    async with pages.logged_in() as client:
        decisions = counted((await client.get("/decisions")).text)
        entries = counted((await client.get("/audit?action=pool.hold")).text)
        assert [(await client.get(path)).text.strip() for path in (decisions, entries)] == ["", ""]
        for number in range(2):
            await client.post("/pools/eu/hold", data={"minutes": "1", "reason": "a visit", "key": f"k{number}"})
        response = [(await client.get(path)).text for path in (decisions, entries)]
        other = (await client.get(decisions + "&pool=us")).text.strip()
        odd = await client.get("/decisions/newer?than=word")
    assert [parsed(text).numbers for text in response] == [[2], [2]]
    assert parsed(response[1]).links() == ["/audit?action=pool.hold"]
    assert other == "", "the filter applies to new entries"
    assert odd.status_code == 422


async def test_the_list_of_runs_reloads_its_rows_by_the_same_address(pages: RunningWeb, fake: FakeControlPlane) -> None:
    async with pages.logged_in() as client:
        shown = (await client.get("/runs?sort=reward&state=on")).text
        assert 'hx-get="/runs/table?state=on&amp;sort=reward"' in shown
        deadline = time.monotonic() + 60
        while 'id="run-1"' not in (table := (await client.get("/runs/table?state=on&sort=reward")).text):
            assert time.monotonic() < deadline, "the run was not recorded"
            await asyncio.sleep(0.1)
        assert '<form class="filters"' not in table
        assert "<html" not in table
        over = (await client.get("/runs/table?state=over")).text
    assert parsed(over).rows() == []
