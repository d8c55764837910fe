"""What pages say of what was done, how it is taken back, and what it takes to do it."""

import base64
import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.maintainer.fleet.parts import POOL
from tests.web.pages.test_fleet_pages import follow, page_over

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    async with running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as running:
        yield running


async def test_a_hold_and_a_pause_are_taken_back_from_the_page_that_tells_of_them(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        held = await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a visit", "key": "h"})
        address, fields = undo_of(await follow(client, held))
        assert fleet.parts.ledger.pools[POOL].hold_until is not None
        released = await client.post(address, data=fields)
        assert fleet.parts.ledger.pools[POOL].hold_until is None
        assert "Undo" not in (await follow(client, released)).partition('class="flash"')[2].partition("</div>")[0]

        paused = await client.post("/flows/train/pause?back=dataflow", data={"reason": "a visit"})
        address, fields = undo_of(await follow(client, paused))
        assert (await client.post(address, data=fields)).status_code == 303
    assert [(action, flow) for action, flow, *_ in fake.actions] == [("paused", "train"), ("resumed", "train")]


def undo_of(page: str) -> tuple[str, dict[str, str]]:
    """Where the form in the page's notice goes, and what it sends."""
    notice = page.partition('class="flash"')[2].partition("</form>")[0]
    address = html.unescape(notice.partition('action="')[2].partition('"')[0])
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', notice))
    assert fields["reason"] == "undone on the page"
    return address, fields


@pytest.mark.parametrize(
    "told",
    [["x", "good", "launch", "eu", "k"], ["x", "good", "resume", 7, "k"], ["x", "good", "resume"], ["x", "odd"], [], 3],
)
async def test_a_notice_that_was_made_up_is_none(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path, told: object
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        made_up = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        client.cookies.set("astraflow_flash", made_up, domain="127.0.0.1")
        answer = await client.get("/pools")
    assert answer.status_code == 200
    assert 'class="flash"' not in answer.text


async def test_who_may_only_look_is_told_what_it_takes(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a visit", "key": "h"})
        async with web.in_role(client, "viewer") as viewer:
            for path, what in (
                ("/runs", "to launch runs"),
                ("/nodes", "to drain nodes"),
                ("/nodes/n0", "to drain it"),
                ("/pools/eu", "to release it"),
                ("/pools/eu", "to plan sizes and hold pools"),
            ):
                page = html.unescape((await viewer.get(path)).text)
                assert f"This needs role operator, {what}; you are viewer." in page, (path, what)
            assert 'class="kill" href="/kill"' in page
            asked = await viewer.get("/kill")
    assert asked.status_code == 403
    assert "Who can grant it" in asked.text
