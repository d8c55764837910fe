"""Runs that the page launches: forms from recipes, separate processes, rediscovery, stop and resume."""

import asyncio
import fcntl
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.client.local_runs import log_tail
from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import FormField, RecipeForm
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.run_folders import RunFolder, active_runs
from tests.errors import raises_code
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.forking import ForkingProgram
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import notice_after, parsed
from web.launcher.catalogue import Catalogue, overrides_from
from web.launcher.environments import child_environment
from web.launcher.options import LaunchOptions

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

ENDLESS = {"set.stop.steps": "100000", "set.stop.reward": "2", "set.nodes.count": "1"}

SAMPLED = '<article class="group"'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of the runs; ends those that a failed test leaves behind, which would take a core from all later tests."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    for run in active_runs():
        with suppress(ProcessLookupError):
            os.kill(run.facts.pid, signal.SIGTERM)


@pytest.fixture(autouse=True)
def forked_runs(request: pytest.FixtureRequest, forking_cli: ForkingProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets runs fork, except in a test that has the marker `real_processes`."""
    if not request.node.get_closest_marker("real_processes"):
        monkeypatch.setattr("web.launcher.launcher.CLI_COMMAND", forking_cli.command)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[RunningWeb]:
    """A page without a configured run."""
    async with running_web(tmp_path / "web", "") as running:
        yield running


async def until(claim: Callable[[], Any], *, what: str, within_s: float = 60.0) -> Any:
    """Waits until the claim, or its awaited result, is true; returns that value."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        held = claim()
        held = await held if asyncio.iscoroutine(held) else held
        if held:
            return held
        await asyncio.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {within_s:g} s")


async def launched(client: httpx.AsyncClient, **settings: str) -> str:
    """Launches `smoke`; returns the run's name."""
    answer = await client.post("/runs/new", data={"recipe": "smoke", **settings}, timeout=60)
    assert answer.status_code == 303, answer.text[-3000:]
    assert answer.headers["location"].startswith("/launches/smoke-")
    return answer.headers["location"].removeprefix("/launches/")


async def state_of(client: httpx.AsyncClient, name: str) -> str:
    return (
        (await client.get(f"/launches/{name}/state"))
        .text.partition('data-tone="')[2]
        .partition(">")[2]
        .partition("<")[0]
    )


@pytest.mark.long
@pytest.mark.real_processes
async def test_a_recipe_is_launched_shown_stopped_and_resumed(page: RunningWeb) -> None:
    async with page.logged_in() as client:
        name = await launched(client, **ENDLESS, **{"set.nodes.text_share": "1"})
        await until(lambda: state_is(client, name, "running"), what="the run's beginning")
        watching = await until(lambda: watch(client, name), what="following the run")
        assert watching.headers["location"] == "/"
        await page.until_live(client, sequence=2)
        assert (await client.get("/api/v1/report")).json()["run"] == name
        assert name in (await client.get("/runs")).text
        await until(lambda: sampled(client), what="a group's being sampled")

        stopped = await client.post(f"/launches/{name}/stop", data={"reason": "enough"})
        assert (await notice_after(client, stopped)).tone == "good"
        await until(lambda: state_is(client, name, "ended"), what="the run's end")
        assert active_runs() == []
        recorded_runs = await until(lambda: recorded(client), what="its being shown from its folder")
        assert SAMPLED in recorded_runs

        resumed = await client.post(f"/launches/{name}/resume")
        assert (await notice_after(client, resumed)).tone == "good"
        await until(lambda: state_is(client, name, "running"), what="its going on")
        await client.post(f"/launches/{name}/stop")
        await until(lambda: state_is(client, name, "ended"), what="its second end")


async def sampled(client: httpx.AsyncClient) -> bool:
    return SAMPLED in (await client.get("/runs/1/trajectories")).text


async def recorded(client: httpx.AsyncClient) -> str:
    """Returns the trajectories page of an ended run; empty while the run is still live."""
    page = await client.get("/runs/1/trajectories")
    return page.text if parsed(page).has("[data-part=record-note]") else ""


async def state_is(client: httpx.AsyncClient, name: str, state: str) -> bool:
    return await state_of(client, name) == state


async def watch(client: httpx.AsyncClient, name: str) -> httpx.Response | None:
    """Selects the run; returns None while the page does not follow it yet."""
    answer = await client.post("/runs/watch", data={"name": name})
    return answer if answer.headers["location"] == "/" else None


async def test_a_run_survives_the_page_process_and_is_found_again(tmp_path: Path) -> None:
    async with running_web(tmp_path / "web", "") as first, first.logged_in() as client:
        name = await launched(client, **ENDLESS)
        await until(lambda: state_is(client, name, "running"), what="the run's beginning")

    (folder,) = await until(active_runs, what="the facts of the run, which it writes after it holds its lock")
    assert folder.facts.run == name

    async with running_web(tmp_path / "web", "") as second, second.logged_in() as client:
        assert await state_of(client, name) == "running"
        await until(lambda: watch(client, name), what="following it again")
        await client.post(f"/launches/{name}/stop")
        await until(lambda: state_is(client, name, "ended"), what="its end")


@pytest.mark.long
async def test_a_run_that_fails_to_start_shows_the_cause(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "torn.jsonl").write_text("no object\n")
    torn = {"set.flows.train.dataset.kind": "jsonl", "set.flows.train.dataset.path": str(data / "torn.jsonl")}
    async with running_web(tmp_path / "web", "", data=(str(data),)) as page, page.logged_in() as client:
        name = await launched(client, **torn)
        cause = await until(lambda: final_message(client, name), what="the end of what cannot start", within_s=150.0)
        assert "torn.jsonl" in cause
        assert cause in unescape((await client.get(f"/launches/{name}")).text)


async def final_message(client: httpx.AsyncClient, name: str) -> str:
    """Returns the final message of a run from the API; empty until the run has ended."""
    launch_state = (await client.get(f"/api/v1/launches/{name}")).json()
    return str(launch_state["final_message"]) if launch_state["state"] == "ended" else ""


@pytest.mark.long
async def test_an_invalid_setting_is_marked_at_its_field_and_nothing_is_launched(page: RunningWeb) -> None:
    async with page.logged_in() as client:
        answer = await client.post(
            "/runs/new", data={"recipe": "smoke", "set.stop.steps": "many", "set.nodes.count": "-1"}, timeout=60
        )
        assert answer.status_code == 422
        for key in ("stop-steps", "nodes-count"):
            field = answer.text.partition(f'id="field-{key}"')[2].partition("</div>")[0]
            assert "field-problem" in field, key
        assert 'value="many"' in answer.text, "entered values are kept"
        assert (await client.get("/runs")).text.count("/launches/") == 0


async def test_unknown_recipes_and_settings_are_refused(page: RunningWeb, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('extends = "smoke"\n')
    async with page.logged_in() as client:
        for recipe in (str(own), "../smoke", "--help", ""):
            answer = await client.post("/runs/new", data={"recipe": recipe}, timeout=60)
            assert answer.status_code == 422, recipe
        unknown = await client.post("/runs/new", data={"recipe": "smoke", "set.stop.stepz": "1"}, timeout=60)
        assert unknown.status_code == 422
        (problem,) = parsed(unknown).one("#preview").all("p.field-problem")
        assert "'stop.stepz'" in problem.text


@pytest.mark.long
async def test_the_preview_shows_a_recipe_a_command_and_an_api_request(page: RunningWeb) -> None:
    async with page.logged_in() as client:
        form = {"recipe": "smoke", "set.stop.steps": "7", "fleet": "on", "ends_by_itself": "on"}
        preview = parsed(await client.post("/runs/new/preview", data=form, timeout=60)).one("#preview")
        assert preview["data-state"] == "ready"
        commands = preview.commands()
        assert ["stop.steps", "=", "7"] in commands
        assert ["astraflow", "run", "smoke", "--fleet", "--headless", "--set", "stop.steps=7"] in commands
        assert ["POST", "/api/v1/launches"] in commands


@pytest.mark.long
async def test_a_viewer_launches_nothing(page: RunningWeb) -> None:
    async with page.logged_in() as admin, page.in_role(admin, "viewer") as viewer:
        assert (await viewer.get("/runs/new")).status_code == 403
        assert (await viewer.post("/runs/new", data={"recipe": "smoke"})).status_code == 403
        assert "New run" not in (await viewer.get("/runs")).text


async def test_an_action_for_an_ended_run_affects_no_other_run(tmp_path: Path) -> None:
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as web, web.logged_in() as client:
        await web.until_live(client)
        refused = await client.post("/nodes/n0/drain", data={"run": "another"})
        assert refused.status_code == 409
        assert "another" in refused.text
        drained = await client.post("/nodes/n0/drain", data={"run": fake.synthetic_run.run})
        assert drained.status_code == 303


async def test_a_run_with_an_unreadable_folder_breaks_no_page(tmp_path: Path, home: Path) -> None:
    folder = home / "runs" / "torn"
    folder.mkdir(parents=True)
    facts = {"run": "torn", "recipe": "r", "seed": 0, "started_at": "", "release": "", "commit": "", "python": ""}
    (folder / "run.json").write_text(json.dumps({**facts, "pid": 1, "dataflow": "127.0.0.1:9"}))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the run is active, and its token is missing
        async with running_web(tmp_path / "web", "") as page, page.logged_in() as client:
            assert [active_run.facts.run for active_run in active_runs()] == ["torn"]
            await asyncio.sleep(2.5)  # longer than the interval between two scans
            assert (await client.get("/runs")).status_code == 200


def test_launched_processes_inherit_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASTRAFLOW_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET", "ASTRAFLOW_FLEET_TOKEN"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("ASTRAFLOW_FOLLOW_PARENT", "1")

    assert "canary" not in child_environment().values()
    assert "ASTRAFLOW_FOLLOW_PARENT" not in child_environment(), "the run must not be a child of this process"
    assert child_environment()["PATH"] == os.environ["PATH"]


def form_of(*fields: FormField) -> RecipeForm:
    return RecipeForm(
        name="r",
        summary="",
        simulated=(),
        fields=fields,
        problems=(),
        refusals=(),
        checks=(),
        overrides=(),
        needs_admin=False,
        toml="",
        text="",
        usd_per_hour=0.0,
        has_fleet=False,
        pools=(),
        usd_per_hour_max=None,
        usd_per_day_max=None,
    )


def field(key: str, kind: Any, value: Any) -> FormField:
    return FormField(
        key=key,
        title=key,
        owner="",
        kind=kind,
        value=value,
        description="",
        minimum=None,
        maximum=None,
        choices=(),
        is_optional=False,
        is_basic=True,
        settable_by="agent",
    )


def test_only_changed_settings_are_overridden_and_text_stays_text() -> None:
    form = form_of(
        field("a", "integer", 1), field("b", "text", "x"), field("c", "boolean", True), field("d", "number", None)
    )

    assert overrides_from({"a": "1", "b": "x", "c": "true", "d": ""}, form) == []
    assert overrides_from({"a": "2", "b": "3]\"'", "c": "false", "d": "0.5"}, form) == [
        "a=2",
        "b=" + json.dumps("3]\"'"),
        "c=false",
        "d=0.5",
    ]
    for bad, code in (
        ({"e": "1"}, "recipe.unknown_setting"),
        ({"b": "two\nlines"}, "recipe.invalid_value"),
        ({"b": "nul\0"}, "recipe.invalid_value"),
    ):
        with raises_code(InvalidInput, code):
            overrides_from(bad, form)


@pytest.mark.long
@pytest.mark.usefixtures("real_cli")
async def test_the_catalogue_has_every_packaged_recipe() -> None:
    catalogue = Catalogue(clock=SystemClock())
    cards = {card.name: card for card in await catalogue.cards()}
    assert {"reverse", "smoke", "smoke/two_policies"} <= cards.keys()
    assert cards["smoke"].simulated == ("scripted",)
    assert all(not card.problem for card in cards.values())
    form = await catalogue.form("smoke/two_policies")
    assert {"policies.solver.batch_groups", "stop.steps"} <= {field.key for field in form.fields if field.is_basic}
    (steps,) = (field for field in form.fields if field.key == "stop.steps")
    assert (steps.kind, steps.minimum, steps.is_optional) == ("integer", 1, False)
    assert steps.description


def test_a_log_is_read_from_the_given_offset(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log("launch").parent.mkdir()
    folder.log("launch").write_text("one\n")
    assert log_tail(folder, "launch") == ("one\n", 4)
    with folder.log("launch").open("a") as file:
        file.write("two\n")
    assert log_tail(folder, "launch", after=4) == ("two\n", 8)
    assert log_tail(folder, "launch", after=99) == ("one\ntwo\n", 8), "a truncated log is read from its beginning"
    with pytest.raises(InvalidInput):
        log_tail(folder, "../token")


def test_launch_options_become_arguments() -> None:
    assert LaunchOptions(ends_by_itself=False).arguments() == []
    assert LaunchOptions(has_fleet=True, limit_s=30.0).arguments() == ["--fleet", "--headless", "--limit-s", "30"]


@pytest.mark.long
async def test_a_run_is_forked_from_a_kept_checkpoint(page: RunningWeb, home: Path) -> None:
    async with page.logged_in() as client:
        parent = await launched(client, **{"set.stop.steps": "3", "ends_by_itself": "on"})
        await until(lambda: state_is(client, parent, "ended"), what="the end")
        form = (await client.get(f"/runs/new?of={parent}&fork=1")).text
        assert '<option value="3" selected>' in form
        assert f"astraflow fork {home.resolve()}/runs/{parent} --step 3" in unescape(form)
        refused = await client.post("/runs/new", data={"of": parent, "step": "7"}, timeout=60)
        assert refused.status_code == 422
        assert "has kept" in refused.text
        options = {"step": "2", "fresh_optimizer": "on", "set.stop.steps": "1", "ends_by_itself": "on"}
        answer = await client.post("/runs/new", data={"of": parent, **options}, timeout=60)
        fork = answer.headers["location"].removeprefix("/launches/")
        folder = RunFolder(home / "runs" / fork)
        await until(lambda: list(folder.path.glob("trainer-*/checkpoints/step-00000000")), what="the first checkpoint")
        facts = json.loads((folder.path / "launch.json").read_text())
        await until(lambda: state_is(client, fork, "ended"), what="the end of the fork")
    assert (facts["parent"], facts["parent_step"], facts["has_fresh_optimizer"]) == (parent, 2, True)
