"""Pool sizes, holds, bounds, faults and maintainer proposals with the keyboard alone."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from tests.fakes import maintainer
from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.keyboard import KeyboardUser
from tests.fakes.synthetic_run import text_record
from tests.fakes.web import running_web
from tests.maintainer.fleet.parts import POOL

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.long]


@dataclass(frozen=True, kw_only=True)
class OperatorPage:
    """A page over a fleet of three nodes, used with the keyboard alone."""

    page: Page
    keys: KeyboardUser
    fleet: RunningFleet
    plane: FleetPlaneClient

    @property
    def states(self) -> dict[str, int]:
        """Instances per state. Count."""
        return self.fleet.parts.states()


@pytest.fixture
async def operator_page(fake: FakeControlPlane, tmp_path: Path) -> AsyncIterator[OperatorPage]:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=3, pool={"max_nodes": 8}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        browser() as chromium,
        logged_in_page(chromium, web.login_url) as (page, complaints, _),
    ):
        await web.until_connected()
        keys = KeyboardUser(page)
        await keys.arrived("The trainer")
        yield OperatorPage(page=page, keys=keys, fleet=fleet, plane=plane)
        assert complaints.heard == []


async def test_a_pool_can_be_managed_by_keyboard(operator_page: OperatorPage) -> None:
    await _open_the_pool(operator_page)
    await _resize(operator_page)
    await _set_and_end_a_hold(operator_page)
    await _ask_what_if(operator_page)
    await _change_bounds(operator_page)
    await _inject_a_fault(operator_page)


async def _open_the_pool(operator_page: OperatorPage) -> None:
    await operator_page.keys.go("p", "Pools")
    await operator_page.keys.row("eu")
    await operator_page.fleet.parts.want(4)
    await expect(operator_page.page.locator(".pools-table tbody")).to_contain_text("4")
    await operator_page.keys.is_seen()
    assert (await operator_page.keys.name()).startswith("eu"), "the table was reloaded meanwhile"
    await operator_page.keys.press("Enter")
    await operator_page.keys.arrived("eu")


async def _resize(operator_page: OperatorPage) -> None:
    before = operator_page.fleet.status().pools[0].target
    await operator_page.keys.fill("Nodes (", "6")
    await operator_page.keys.fill("Reason", "by keys")
    await operator_page.keys.press("Enter")
    await operator_page.keys.dialog("Resize eu")
    await operator_page.keys.cancel_dialog("Reason")
    assert operator_page.fleet.status().pools[0].target == before, "planning changes nothing"
    await operator_page.keys.press("Enter")
    await operator_page.keys.dialog("Resize eu")
    await operator_page.keys.use("Apply")
    await operator_page.keys.flash_message("launched")
    assert operator_page.fleet.status().pools[0].target == 6


async def _set_and_end_a_hold(operator_page: OperatorPage) -> None:
    await operator_page.keys.choose("Hold all nodes for", "60")
    await operator_page.keys.fill("Reason", "by keys")
    await operator_page.keys.press("Enter")
    await operator_page.keys.flash_message("Hold for 60 minutes")
    assert operator_page.fleet.status().pools[0].hold_reason == "by keys"
    await operator_page.keys.use("End the hold")
    await operator_page.keys.flash_message("Hold ended")
    assert operator_page.fleet.status().pools[0].hold_until_at is None


async def _ask_what_if(operator_page: OperatorPage) -> None:
    await operator_page.keys.fill("Maximum nodes", "5")
    await operator_page.keys.choose("What-if over", "the last 6 h")
    await operator_page.keys.use("What if?")
    await operator_page.page.wait_for_url("**/what-if?*max_nodes=5*")
    await operator_page.keys.arrived("eu")
    await operator_page.keys.is_seen()
    assert "what-if" in await operator_page.page.evaluate("document.activeElement.id"), "the focus is at the answer"


async def _change_bounds(operator_page: OperatorPage) -> None:
    await operator_page.keys.go("p", "Pools")
    await operator_page.keys.row("eu")
    await operator_page.keys.press("Enter")
    await operator_page.keys.arrived("eu")
    await operator_page.keys.choose("Mode", "advise")
    await operator_page.keys.fill("Maximum nodes", "9")
    await operator_page.keys.fill("Reason", "by keys")
    await operator_page.keys.press("Enter")
    await operator_page.keys.flash_message("Pool eu is 0 to 9 nodes, mode advise")
    spec = operator_page.fleet.status().pools[0].spec
    assert (spec.max_nodes, spec.mode.value) == (9, "advise")


async def _inject_a_fault(operator_page: OperatorPage) -> None:
    await operator_page.keys.use("Fault injection")
    await operator_page.keys.dialog("Inject a fault into eu?")
    await operator_page.keys.cancel_dialog("Fault injection")
    await operator_page.keys.press("Enter")
    await operator_page.keys.dialog("Inject a fault into eu?")
    ready = operator_page.states["ready"]
    await operator_page.keys.use("Inject fault")
    await operator_page.keys.flash_message("1 of 3 nodes terminated without notice")
    await operator_page.fleet.pass_time(5.0)
    assert operator_page.states["ready"] < ready


async def test_proposals_can_be_rejected_and_approved_by_keyboard(operator_page: OperatorPage) -> None:
    keys, page = operator_page.keys, operator_page.page
    await operator_page.plane.send_maintainer_heartbeat(maintainer.status())
    await maintainer.propose(operator_page.plane, PoolId(POOL), 6)
    await keys.go("m", "Maintainer")
    await expect(page.locator("#waiting-title")).to_have_text("1 proposal waits for approval")
    await keys.press("a")
    await keys.dialog("Resize eu: 3 to 6 nodes?")
    await keys.fill("Reason", "not today")
    await keys.use("Reject")
    await keys.flash_message("Rejected")
    assert operator_page.states == {"ready": 3}

    await maintainer.propose(operator_page.plane, PoolId(POOL), 5)
    await expect(page.locator("#waiting-title")).to_have_text("1 proposal waits for approval")
    await keys.is_seen()
    await keys.use("Decide")
    await keys.dialog("Resize eu: 3 to 5 nodes?")
    await keys.cancel_dialog("Decide")
    await keys.press("Enter")
    await keys.dialog("Resize eu: 3 to 5 nodes?")
    await keys.use("Approve")
    await keys.flash_message("launched")
    assert operator_page.states == {"ready": 3, "intended": 2}


@pytest.mark.past_reports
async def test_annotations_open_decisions_and_the_palette_opens_nodes_by_keyboard(
    operator_page: OperatorPage, fake: FakeControlPlane
) -> None:
    keys, page = operator_page.keys, operator_page.page
    await keys.to("Node lost: n9")
    await keys.press("ArrowLeft")
    assert (await keys.name()).startswith("Target moved: local")
    await keys.press("Enter")
    await expect(page.locator("#drawer #event-detail")).to_contain_text("Calculation")
    await keys.is_seen()
    for _ in range(3):
        await fake.advance(5)
    await keys.press("Escape")
    await expect(page.locator("#drawer")).to_be_hidden()
    assert (await keys.name()).startswith("Target moved")
    await keys.is_seen()

    await keys.to("Target moved", like="[data-region=events] a")
    fake.synthetic_run.act(fake.sequence, text_record(RecordKind.PROBLEM, "disk", "is nearly full"))
    await fake.advance()
    await expect(page.locator("[data-region=events]")).to_contain_text("nearly full")
    assert (await keys.name()).startswith("Target moved"), "the list was updated meanwhile"
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
