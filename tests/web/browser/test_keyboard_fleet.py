"""The fleet without a mouse: sizes, holds, bounds, faults, and what a maintainer proposes."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.ids import PoolId
from tests.fakes import maintainer
from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.keyboard import Keys
from tests.fakes.web import running_web
from tests.maintainer.fleet.parts import POOL

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240)]


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A page over a fleet of three nodes, at which somebody sits without a mouse."""

    page: Page
    keys: Keys
    fleet: RunningFleet
    plane: FleetPlaneClient

    @property
    def states(self) -> dict[str, int]:
        """How many machines are in which state."""
        return self.fleet.parts.states()


@pytest.fixture
async def desk(fake: FakeControlPlane, tmp_path: Path) -> AsyncIterator[Desk]:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=3, pool={"max_nodes": 8}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        browser() as chromium,
        logged_in_page(chromium, web.login_url) as (page, complaints, _),
    ):
        await web.until_fed()
        keys = Keys(page)
        await keys.arrived("The trainer")
        yield Desk(page=page, keys=keys, fleet=fleet, plane=plane)
        assert complaints.heard == []


async def test_a_pool_is_resized_held_bounded_rehearsed_and_hurt_by_keys_alone(desk: Desk) -> None:
    await _open_the_pool(desk)
    await _resize(desk)
    await _hold_and_release(desk)
    await _ask_what_if(desk)
    await _change_bounds(desk)
    await _lose_nodes(desk)


async def _open_the_pool(desk: Desk) -> None:
    await desk.keys.go("p", "Pools")
    await desk.keys.row("eu")
    await desk.fleet.parts.want(4)
    await expect(desk.page.locator(".pools-table tbody")).to_contain_text("4")
    await desk.keys.is_seen()
    assert (await desk.keys.name()).startswith("eu"), "the table was read again meanwhile"
    await desk.keys.press("Enter")
    await desk.keys.arrived("eu")


async def _resize(desk: Desk) -> None:
    before = desk.fleet.status().pools[0].target
    await desk.keys.fill("Nodes (", "6")
    await desk.keys.fill("Reason", "by keys")
    await desk.keys.press("Enter")
    await desk.keys.dialog("Resize eu")
    await desk.keys.back_out("Reason")
    assert desk.fleet.status().pools[0].target == before, "planning changes nothing"
    await desk.keys.press("Enter")
    await desk.keys.dialog("Resize eu")
    await desk.keys.use("Apply")
    await desk.keys.told("launched")
    assert desk.fleet.status().pools[0].target == 6


async def _hold_and_release(desk: Desk) -> None:
    await desk.keys.choose("Hold for", "60")
    await desk.keys.fill("Reason", "by keys")
    await desk.keys.press("Enter")
    await desk.keys.told("No node of pool eu is taken away for 60 minutes")
    assert desk.fleet.status().pools[0].hold_reason == "by keys"
    await desk.keys.use("Release")
    await desk.keys.told("Eu is free")
    assert desk.fleet.status().pools[0].hold_until is None


async def _ask_what_if(desk: Desk) -> None:
    await desk.keys.fill("Most nodes", "5")
    await desk.keys.choose("What if over", "the last 6 h")
    await desk.keys.use("What if?")
    await desk.page.wait_for_url("**/what-if?*max_nodes=5*")
    await desk.keys.arrived("eu")
    await desk.keys.is_seen()
    assert "what-if" in await desk.page.evaluate("document.activeElement.id"), "where the answer is"


async def _change_bounds(desk: Desk) -> None:
    await desk.keys.go("p", "Pools")
    await desk.keys.row("eu")
    await desk.keys.press("Enter")
    await desk.keys.arrived("eu")
    await desk.keys.choose("Mode", "advise")
    await desk.keys.fill("Most nodes", "9")
    await desk.keys.fill("Reason", "by keys")
    await desk.keys.press("Enter")
    await desk.keys.told("Pool eu is 0 to 9 nodes, mode advise")
    spec = desk.fleet.status().pools[0].spec
    assert (spec.max_nodes, spec.mode.value) == (9, "advise")


async def _lose_nodes(desk: Desk) -> None:
    await desk.keys.use("Fault: lose 30")
    await desk.keys.dialog("Have nodes of eu fail?")
    await desk.keys.back_out("Fault: lose 30")
    await desk.keys.press("Enter")
    await desk.keys.dialog("Have nodes of eu fail?")
    ready = desk.states["ready"]
    await desk.keys.use("Lose them")
    await desk.keys.told("1 of 3 nodes end without notice")
    await desk.fleet.pass_time(5.0)
    assert desk.states["ready"] < ready


async def test_what_a_maintainer_proposes_is_rejected_and_approved_by_keys_alone(desk: Desk) -> None:
    keys, page = desk.keys, desk.page
    await desk.plane.beat_maintainer(maintainer.status())
    await maintainer.propose(desk.plane, PoolId(POOL), 6)
    await keys.go("m", "Maintainer")
    await expect(page.locator("#waiting-title")).to_have_text("1 proposal waits for a person")
    await keys.press("a")
    await keys.dialog("Resize eu: 3 to 6 nodes?")
    await keys.fill("Reason", "not today")
    await keys.use("Reject")
    await keys.told("Rejected")
    assert desk.states == {"ready": 3}

    await maintainer.propose(desk.plane, PoolId(POOL), 5)
    await expect(page.locator("#waiting-title")).to_have_text("1 proposal waits for a person")
    await keys.is_seen()
    await keys.use("Decide")
    await keys.dialog("Resize eu: 3 to 5 nodes?")
    await keys.back_out("Decide")
    await keys.press("Enter")
    await keys.dialog("Resize eu: 3 to 5 nodes?")
    await keys.use("Approve")
    await keys.told("launched")
    assert desk.states == {"ready": 3, "intended": 2}


async def test_a_pin_of_the_chart_opens_its_decision_and_the_palette_a_node(desk: Desk, fake: FakeControlPlane) -> None:
    keys, page = desk.keys, desk.page
    await keys.to("Node lost: n9")
    await keys.press("ArrowLeft")
    assert (await keys.name()).startswith("Target moved: local")
    await keys.press("Enter")
    await expect(page.locator("#drawer #happening")).to_contain_text("How it follows")
    await keys.is_seen()
    for _ in range(3):
        await fake.advance(5)
    await keys.press("Escape")
    await expect(page.locator("#drawer")).to_be_hidden()
    assert (await keys.name()).startswith("Target moved")
    await keys.is_seen()

    await keys.to("Target moved", like="[data-region=events] a")
    fake.world.act(fake.sequence, "trouble", "disk", "is nearly full")
    await fake.advance()
    await expect(page.locator("[data-region=events]")).to_contain_text("nearly full")
    assert (await keys.name()).startswith("Target moved"), "the list was patched meanwhile"
    await keys.is_seen()

    await keys.press("Control+k")
    await expect(page.locator("#palette-list [role=option]").first).to_be_visible()
    await keys.press("Escape")
    assert (await keys.name()).startswith("Target moved"), "the palette gives the focus back"
    await keys.press("Control+k")
    await expect(page.locator("#palette-list [role=option]").first).to_be_visible()
    await page.keyboard.type("node-a")
    await expect(page.locator("#palette-0")).to_contain_text("node-a")
    await keys.press("Enter")
    await keys.arrived("node-a")
