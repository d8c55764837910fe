"""Launches from the recipe's TOML text: in step with the form, with the same limits and audit."""

import re
from html import unescape
from pathlib import Path

import httpx
import pytest

from tests.fakes.launching import FakeLauncher
from tests.fakes.recorded_run import run_folder
from tests.web.launches.test_launch_limits import entries, page, snapshot_of
from tests.web.launches.test_launching_fleets import HERE, page_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.timeout(600)]

PREVIEW = "/runs/new/preview"


@pytest.fixture(autouse=True)
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder with a recipe that has a fleet. Runs end at once."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)
    (tmp_path / "recipes").mkdir(mode=0o755)
    (tmp_path / "recipes" / "here.toml").write_text(HERE)


def text_of(answer: httpx.Response) -> str:
    """Returns the text in the editor of a page."""
    return unescape(re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", answer.text, re.DOTALL)[0])


def value_of(answer: httpx.Response, key: str) -> str:
    """Returns the value of a field."""
    return unescape(re.findall(rf'name="set\.{re.escape(key)}" value="([^"]*)"', answer.text)[0])


async def test_form_and_text_follow_each_other(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        first = await client.get("/runs/new?recipe=smoke")
        text = text_of(first)
        from_field = await client.post(PREVIEW, data={"recipe": "smoke", "text": text, "set.stop.steps": "7"})
        assert "steps = 7" in text_of(from_field)
        edited = f"{text_of(from_field)}\n[tracing]\nto = '/x'\n"
        form = {"recipe": "smoke", "text": edited, "edited": "text"}
        from_text = await client.post(PREVIEW, data=form)
        assert from_text.status_code == 403, "tracing is of the recipe alone"
        edited = text_of(from_field).replace("steps = 7", "steps = 9 # mine")
        from_text = await client.post(PREVIEW, data=form | {"text": edited, "set.seed": "5"})
        assert text_of(from_text) == edited
        assert (value_of(from_text, "stop.steps"), value_of(from_text, "seed")) == ("9", "0"), (
            "the text was edited last"
        )
        both = await client.post(PREVIEW, data=form | {"text": edited, "edited": "form", "set.seed": "5"})
        assert {"steps = 9", "seed = 5"} <= set(text_of(both).splitlines())


async def test_every_problem_has_its_field_and_its_line(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        form = {"recipe": "smoke", "set.flows.train.group_size": "0", "set.stop.steps": "many"}
        answer = await client.post(PREVIEW, data=form)
        assert re.findall(r'data-field="([^"]+)"><code>', answer.text) == ["stop.steps", "flows.train.group_size"]
        assert 'id="preview-title">2 problems<' in answer.text
        marked = re.findall(r'<span data-tone="bad">(\d+)</span>', answer.text)
        lines = text_of(answer).splitlines()
        assert [lines[int(number) - 1].partition(" ")[0] for number in marked] == ["steps", "group_size"]
        single = await client.post(PREVIEW, data={"recipe": "smoke", "set.stop.steps": "many"})
        assert 'id="preview-title">1 problem<' in single.text


async def test_an_unreadable_text_is_kept_and_not_launched(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        for edited in ("text", "form"):
            form = {"recipe": "smoke", "text": "seed = = 3", "edited": edited, "set.seed": "4"}
            answer = await client.post("/runs/new", data=form)
            assert (answer.status_code, text_of(answer)) == (422, "seed = = 3")


async def test_without_scripts_an_edited_text_is_noticed(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        first = await client.get("/runs/new?recipe=smoke")
        digest = re.findall(r'name="text_digest" value="(\w+)"', first.text)[0]
        edited = text_of(first).replace("seed = 0", "seed = 8")
        form = {"recipe": "smoke", "text": edited, "text_digest": digest, "set.seed": "0", "check": "1"}
        assert value_of(await client.post("/runs/new", data=form), "seed") == "8"


async def test_a_text_has_the_limits_of_the_role_and_is_audited(tmp_path: Path) -> None:
    raised = "[fleet.pools.eu]\nmax_nodes = 9\n"
    async with page(tmp_path) as clients:
        form = {"recipe": "here", "fleet": "on", "text": raised, "edited": "text", "reason": "more"}
        for role in ("operator", "agent"):
            assert (await clients[role].post("/runs/new", data=form)).status_code == 403, role
        refused = await entries(clients["admin"], action="run.launch", result="refused")
        assert len(refused) == 2
        assert all("fleet.pools.eu.max_nodes=9" in entry["after"] for entry in refused)
        launched = await clients["admin"].post("/runs/new", data=form)
        assert launched.status_code == 303, launched.text[-2000:]
        name = launched.headers["location"].removeprefix("/launches/")
        snapshot_of(tmp_path, name, "fleet.pools.eu.max_nodes=9", recipe="here")
        assert (await clients["operator"].post("/runs/new", data={"of": name})).status_code == 403


async def test_the_api_launches_from_a_text(tmp_path: Path) -> None:
    async with page(tmp_path) as clients:
        body = {"recipe": "smoke", "text": "[stop]\nsteps = 7\n", "limit_s": 60, "reason": "a look"}
        planned = (await clients["agent"].post("/api/v1/launch-preview", json=body)).json()
        request = {**body, "plan": planned["plan"]}
        answer = await clients["agent"].post("/api/v1/launches", json=request, headers={"Idempotency-Key": "text"})
        assert answer.status_code == 201, answer.text
        both = await clients["agent"].post("/api/v1/launch-preview", json={**body, "set": {"seed": 1}})
        assert set(both.json()["command"].split()) >= {"stop.steps=7", "seed=1"}


async def test_a_run_of_a_terminal_is_copied_by_admins(tmp_path: Path) -> None:
    async with page(tmp_path) as clients:
        run_folder(tmp_path / "home" / "runs" / "by-hand", run="by-hand")
        snapshot_of(tmp_path, "by-hand", "stop.steps=7")
        shown = await clients["admin"].get("/runs/new?of=by-hand")
        assert shown.status_code == 200, shown.text[-1500:]
        assert value_of(shown, "stop.steps") == "7"
        assert (await clients["operator"].post("/runs/new", data={"of": "by-hand"})).status_code == 403
        for name in ("../by-hand", "no-such", ".."):
            assert (await clients["admin"].get("/runs/new", params={"of": name})).status_code in (400, 404, 409, 422)
