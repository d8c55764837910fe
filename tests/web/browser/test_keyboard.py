"""Daily tasks with the keyboard alone."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.keyboard import KeyboardUser
from tests.web.all_pages import served_site

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.long]

_LAUNCHED = re.compile("/launches/")


async def test_every_daily_task_works_by_keyboard(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with (
        served_site(tmp_path, fake, is_launched=False) as walked,
        browser() as chromium,
        logged_in_page(chromium, walked.web.address + "/login") as (page, complaints, context),
    ):
        cookies = [{"name": n, "value": v, "url": walked.web.address} for n, v in walked.admin.cookies.items()]
        await context.add_cookies(cookies)  # type: ignore[arg-type] # cookie dictionaries
        await page.goto(walked.web.address)
        keys = KeyboardUser(page)
        await _find_a_run(keys)
        await _open_a_decision(keys)
        await _drain_a_node(keys, fake)
        await _pause_and_resume_a_flow(keys, fake)
        await _change_a_plug_in(keys, fake)
        await _launch_a_run(keys)
        assert complaints.heard == []


async def _find_a_run(keys: KeyboardUser) -> None:
    await keys.press("Control+k")
    await expect(keys.page.locator("#palette-list [role=option]").first).to_be_visible()
    await keys.page.keyboard.type("run reverse-0001")
    await expect(keys.page.locator("#palette-0")).to_contain_text("reverse-0001")
    await keys.press("Enter")
    await keys.arrived("reverse-0001")


async def _open_a_decision(keys: KeyboardUser) -> None:
    await keys.go("c", "Decisions")
    await keys.press("j")
    name = await keys.name()
    await keys.press("Enter")
    await keys.dialog("Actor")
    await keys.cancel_dialog(name[:3])


async def _drain_a_node(keys: KeyboardUser, fake: FakeControlPlane) -> None:
    await keys.go("n", "Nodes")
    await keys.row("node-a")
    await keys.press(".")
    if not (await keys.name()).startswith("Drain"):
        await keys.to("Drain")
    await keys.press("Enter")
    await keys.dialog("Drain node-a?")
    await keys.cancel_dialog("Drain")
    await keys.press("Enter")
    await keys.dialog("Drain node-a?")
    await keys.fill("Reason", "by keys")
    await keys.press("Enter")
    await keys.flash_message("Node n0 finishes")
    assert ("drain", "n0", "admin") in fake.actions


async def _pause_and_resume_a_flow(keys: KeyboardUser, fake: FakeControlPlane) -> None:
    await keys.go("d", "Dataflow")
    await keys.use("Pause train")
    await keys.dialog("Pause flow train?")
    await keys.cancel_dialog("Pause train")
    assert not [action for action in fake.actions if action[0] == "paused"]
    await keys.press("Enter")
    await keys.dialog("Pause flow train?")
    await keys.fill("Reason", "by keys")
    await keys.press("Enter")
    await keys.flash_message("Flow train is paused")
    await keys.use("Undo")
    await keys.flash_message("Flow train is resumed")
    assert [(kind, flow) for kind, flow, _ in fake.actions[-2:]] == [("paused", "train"), ("resumed", "train")]


async def _change_a_plug_in(keys: KeyboardUser, fake: FakeControlPlane) -> None:
    await keys.use("Change the filter of flow train")
    await keys.dialog("Change the plugins of flow train")
    await keys.to("On")
    await keys.press("Space")
    await keys.fill("Reason", "by keys")
    await keys.press("Enter")
    await keys.flash_message("changes with the next version")
    assert [(change.filters, change.reason) for change in fake.changes] == [
        (({"kind": "length", "max_share": 0.5},), "by keys")
    ]


async def _launch_a_run(keys: KeyboardUser) -> None:
    await keys.go("r", "Runs")
    await keys.use("New run")
    await keys.arrived("New run")
    await keys.use("smoke")
    await keys.arrived("Launch")
    await keys.fill("Time limit", "1")
    await keys.use("Launch run")
    await expect(keys.page).to_have_url(_LAUNCHED)
