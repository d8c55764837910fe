"""Notices after an action, their undo forms, and the role that an action requires."""

import base64
import json
from pathlib import Path

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet
from tests.maintainer.fleet.parts import POOL
from tests.web.page_elements import parsed
from tests.web.pools.test_fleet_pages import follow, page_over

pytestmark = pytest.mark.anyio


@pytest.mark.long
async def test_a_hold_and_a_pause_are_undone_from_their_notice(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        held = await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a visit", "key": "h"})
        address, fields = undo_of(await follow(client, held))
        assert fleet.parts.ledger.pools[POOL].hold_until_at is not None
        released = await client.post(address, data=fields)
        assert fleet.parts.ledger.pools[POOL].hold_until_at is None
        assert not parsed(await follow(client, released)).one("#flash").has("form")

        paused = await client.post("/flows/train/pause?back=dataflow", data={"reason": "a visit"})
        address, fields = undo_of(await follow(client, paused))
        assert (await client.post(address, data=fields)).status_code == 303
    assert [(action, flow) for action, flow, *_ in fake.actions] == [("paused", "train"), ("resumed", "train")]


def undo_of(page: str) -> tuple[str, dict[str, str]]:
    """Returns the address and the fields of the undo form in the page's notice."""
    form = parsed(page).one("#flash").one("form")
    fields = form.fields()
    assert fields["reason"]
    return form["action"], fields


@pytest.mark.parametrize(
    "content",
    [
        ["x", "good", "", "launch", "eu", "k"],
        ["x", "good", "", "resume", 7, "k"],
        ["x", "good", "", "resume"],
        ["x", "good", 7],
        ["x", "good"],
        ["x", "odd", ""],
        [],
        3,
    ],
)
async def test_an_invalid_notice_cookie_is_ignored(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path, content: object
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        made_up = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        client.cookies.set("astraflow_flash", made_up, domain="127.0.0.1")
        answer = await client.get("/pools")
    assert answer.status_code == 200
    assert not parsed(answer).has("#flash")


@pytest.mark.long
async def test_a_failed_action_leaves_its_error_code_in_the_notice(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        refused = await client.post("/pools/eu/plans", data={"target": "4", "reason": ""})
        notice = parsed(await follow(client, refused)).one("#flash")
        shown_once = parsed(await client.get("/pools/eu"))
    assert (notice.tone, notice["data-code"]) == ("bad", "plan.invalid_reason")
    assert not shown_once.has("#flash")


async def test_a_viewer_sees_the_role_that_each_action_needs(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a visit", "key": "h"})
        async with web.in_role(client, "viewer") as viewer:
            for path, what in (
                ("/runs", "to launch runs"),
                ("/nodes", "to drain nodes"),
                ("/nodes/n0", "to drain it"),
                ("/pools/eu", "to end the hold"),
                ("/pools/eu", "to plan sizes and hold nodes"),
            ):
                page = parsed(await viewer.get(path))
                lines = page.texts(".needs-role[data-role=operator]")
                text = f"Role operator is required {what}; your role is viewer. Admins who can grant it: admin."
                assert text in lines, (path, what)
            assert page.one("a.kill")["href"] == "/kill"
            answer = await viewer.get("/kill")
    assert answer.status_code == 403
    assert "admin" in parsed(answer).one("#report").text
