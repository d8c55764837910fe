"""Runs with the keyboard alone: inspect, compare, download, stop, resume and launch again."""

import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from astraflow.client.local_runs import LAUNCH_LOG
from astraflow.runtime.folders.run_folders import RunFolder
from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.keyboard import KeyboardUser
from tests.fakes.launching import FakeCatalogue
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.web.all_pages import advancing_reports
from tests.web.comparison.test_compared_runs import recorded
from tests.web.runs.test_run_list import filled, record
from web.launcher.launcher import Launcher

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.long]


class Sleeping(Launcher):
    """Starts runs that sleep until they are asked to end."""

    begun: list[subprocess.Popen[bytes]]

    @staticmethod
    async def _start_process(folder: RunFolder, argv: Sequence[str]) -> int:
        folder.log(LAUNCH_LOG).parent.mkdir(parents=True, exist_ok=True)
        folder.log(LAUNCH_LOG).write_text("it sleeps\n")
        folder.recipe_file.write_text("{}")
        process = subprocess.Popen([sys.executable, "-m", "tests.fakes.sleeping_node", str(folder.path)])
        threading.Thread(target=process.wait, daemon=True).start()  # as `start_independent`, so that it is no zombie
        Sleeping.begun.append(process)
        return process.pid


@dataclass(frozen=True, kw_only=True)
class OperatorPage:
    """A page over a run and two records of other runs, used with the keyboard alone."""

    page: Page
    keys: KeyboardUser
    web: RunningWeb
    fake: FakeControlPlane


@pytest.fixture
async def operator_page(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OperatorPage]:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", Sleeping)
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    Sleeping.begun = []
    await filled(tmp_path, record("one", seconds=60), record("two", seconds=90))
    for number, name in enumerate(("one", "two"), start=1):
        await recorded(tmp_path, number, SyntheticRun(run=name, began_at=1000.0), seconds=60)
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow) as web,
        browser() as chromium,
        logged_in_page(chromium, web.login_url, permissions=["clipboard-read", "clipboard-write"]) as logged_in,
    ):
        page, complaints, _ = logged_in
        await web.until_connected()
        keys = KeyboardUser(page)
        await keys.arrived("Reward")
        try:
            yield OperatorPage(page=page, keys=keys, web=web, fake=fake)
        finally:
            for process in Sleeping.begun:
                process.send_signal(signal.SIGTERM)
                process.wait()
        assert complaints.heard == []


async def test_runs_are_compared_and_conversations_opened_by_keyboard(operator_page: OperatorPage) -> None:
    async with advancing_reports(operator_page.fake):
        await _choose_two_and_compare(operator_page)
        await _from_a_bar_to_a_conversation(operator_page)


async def _choose_two_and_compare(operator_page: OperatorPage) -> None:
    keys, page = operator_page.keys, operator_page.page
    await keys.go("r", "Runs")
    await expect(page.locator("#run-3")).to_be_attached()
    for name in ("two", "one"):
        await keys.row(f"☆ Star {name}")
        await keys.press("x")
        await keys.is_seen()
    lasted = page.locator("#run-3 td.num").last
    before = await lasted.inner_text()
    await operator_page.fake.advance(60)
    await expect(lasted).not_to_have_text(before)
    assert (await keys.name()).startswith("☆ Star one"), "the table was reloaded meanwhile"
    await keys.is_seen()
    await keys.use("Compare selected")
    await keys.arrived("Compare 2 runs")
    await keys.use("by time")
    await page.wait_for_url("**x=elapsed*")
    await keys.arrived("Compare 2 runs")


async def _from_a_bar_to_a_conversation(operator_page: OperatorPage) -> None:
    keys, page = operator_page.keys, operator_page.page
    await keys.go("r", "Runs")
    await keys.row("☆ Star reverse-0001")
    await keys.press("Enter")
    await keys.arrived("reverse-0001")
    await keys.to("", like="a.bar")
    async with page.expect_response("**/runs/3/progress?*"):
        pass
    await keys.is_seen()
    await keys.press("Enter")
    await keys.arrived("Trajectories")
    await keys.row("0.00")
    await keys.press("Enter")
    await keys.arrived("Reward")
    first = page.url
    await keys.press("j")
    await page.wait_for_url(lambda url: url != first)
    await keys.press("Escape")
    await page.wait_for_url("**/trajectories?*")  # with the filter of the bar


@pytest.mark.past_reports
async def test_chart_exports_work_by_keyboard(operator_page: OperatorPage) -> None:
    keys, page = operator_page.keys, operator_page.page
    await keys.press("e")
    for name in ("Enlarge", "As a table", "PNG"):
        assert await keys.name() == name
        await keys.press("ArrowDown")
    for name in ("CSV", "JSON"):
        assert await keys.name() == name
        async with page.expect_download() as coming:
            await keys.press("Enter")
        file = await coming.value
        assert file.suggested_filename.endswith(name.lower())
        assert "reward" in Path(await file.path()).read_text()[:4000]
        await keys.is_seen()
        await keys.press("ArrowDown")
    await keys.press("Enter")
    await keys.named("Copied")
    await keys.is_seen()
    assert "/charts/reward_rollouts" in await page.evaluate("navigator.clipboard.readText()")
    await keys.press("Escape")
    assert (await keys.name()).startswith("Chart and files of Mean reward"), "the menu gives the focus back"
    await keys.is_seen()
    await keys.press("e", "ArrowDown", "Enter")
    await keys.arrived("Reward of rollouts")
    await keys.to("Values")
    await keys.press("ArrowDown")
    await keys.is_seen()
    await page.goto(f"{operator_page.web.address}/charts/balance")
    await keys.to("v", like=".publishes-list a")
    version = await keys.name()
    await keys.press("Enter")
    await keys.arrived("Weights")
    await keys.is_seen()
    assert (await keys.name()).startswith(f"{version} "), "the row of that version has the focus"


async def test_a_run_is_stopped_resumed_and_cloned_by_keyboard(operator_page: OperatorPage) -> None:
    keys, page = operator_page.keys, operator_page.page
    await keys.go("r", "Runs")
    await keys.use("New run")
    await keys.arrived("New run")
    await keys.use("smoke")
    await keys.arrived("Launch smoke")
    await keys.fill("Maximum steps", "many")
    await expect(page.locator("#preview")).to_contain_text("1 problem")
    await keys.is_seen()
    await keys.fill("Time limit", "50")
    await keys.to("Maximum steps", back=True)
    await keys.write("7")
    await expect(page.locator("#preview")).to_contain_text("Ready to launch")
    await keys.use("Launch run")
    await keys.arrived("smoke-")
    first = page.url
    await keys.use("Stop")
    await keys.dialog("Stop smoke-")
    await keys.cancel_dialog("Stop")
    await keys.press("Enter")
    await keys.dialog("Stop smoke-")
    await keys.fill("Reason", "by keys")
    await keys.press("Enter")
    await keys.flash_message("is stopping")
    await expect(page.locator("#launch-state")).to_contain_text("ended")
    await keys.is_seen()
    assert [process.poll() for process in Sleeping.begun] == [0]
    await keys.use("Resume")
    await keys.flash_message("is resuming")
    assert len(Sleeping.begun) == 2
    await keys.use("Launch a copy")
    await keys.arrived("Launch")
    await keys.use("Launch run")
    await keys.arrived("smoke-")
    assert page.url != first
    assert len(Sleeping.begun) == 3
