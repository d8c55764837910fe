"""Launching what brings its own machines: declared recipes, their fleets, and where machines elsewhere join."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.hosts import WILDCARDS
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.web import RunningWeb, running_web
from web.settings import Settings

TAG = re.compile(r"<[^>]+>")

EVERYWHERE = WILDCARDS[0]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

HERE = """
extends = "smoke"
name = "here"
summary = "Machines that are processes of this machine"
fleet.providers.here = { kind = "local_process", types = { small = 2.0 } }
fleet.pools.eu = { provider = "here", min_nodes = 1, max_nodes = 3 }
"""

ELSEWHERE = """
extends = "smoke"
name = "elsewhere"
summary = "Machines of a cloud"
fleet.providers.aws = { kind = "ec2", regions = ["eu-west-1"], types = { g6 = 0.8 }, boot = { program = ["/x"] } }
fleet.pools.gpu = { provider = "aws", min_nodes = 1, max_nodes = 8 }
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with declared recipes, one of them broken."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)
    folder = tmp_path / "recipes"
    folder.mkdir(mode=0o755)
    for name, text in {"here": HERE, "elsewhere": ELSEWHERE, "torn": "name = \n"}.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


@asynccontextmanager
async def page_of(directory: Path, **settings: Any) -> AsyncIterator[tuple[RunningWeb, httpx.AsyncClient]]:
    async with running_web(directory / "web", "", **settings) as web, web.logged_in() as client:
        client.timeout = httpx.Timeout(200)
        yield web, client


def told(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ask(client: httpx.AsyncClient, key: str, **body: Any) -> httpx.Response:
    return await client.post(
        "/api/v1/launches", json={"reason": "a look", **body}, headers={"Idempotency-Key": f"key-{key}"}
    )


async def test_a_declared_recipe_is_a_card_and_a_broken_one_says_why_and_is_not_launched(
    recipes: Path, tmp_path: Path
) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        cards = (await client.get("/runs/new")).text
        assert 'href="/runs/new?recipe=here"' in cards
        assert "Cannot be launched" in cards
        assert 'href="/runs/new?recipe=torn"' not in cards
        for name in ("torn", str(recipes / "here.toml"), "../recipes/here"):
            assert (await client.post("/runs/new", data={"recipe": name})).status_code == 422, name
        refused = await ask(client, "torn", recipe="torn")
        assert refused.status_code == 404
        assert "cannot be launched" in refused.text
        assert (await client.get("/api/v1/launches")).json()["total"] == 0


async def test_a_recipe_with_machines_of_its_own_is_launched_with_its_fleet_unless_somebody_says_otherwise(
    recipes: Path, tmp_path: Path
) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        form = (await client.get("/runs/new", params={"recipe": "here"})).text
        assert 'name="fleet" checked' in form
        assert "--fleet" in form
        by_page = await client.post("/runs/new", data={"recipe": "here"})
        name = by_page.headers["location"].removeprefix("/launches/")
        assert (await client.get(f"/api/v1/launches/{name}")).json()["fleet"] is True
        assert told(await ask(client, "own", recipe="here"))["fleet"] is True
        assert told(await ask(client, "without", recipe="here", fleet=False))["fleet"] is False
        assert told(await ask(client, "smoke", recipe="smoke"))["fleet"] is False


async def test_the_preview_asks_the_providers_and_says_what_the_fleet_costs(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        asked = {"recipe": "here", "fleet": "on", "set.fleet.pools.eu.max_nodes": "2", "set.stop.steps": "7"}
        preview = unescape((await client.post("/runs/new/preview", data=asked)).text)
        assert "eu: 1 to 2 of here (local_process), on this machine" in preview
        assert "are being asked" in preview
        address = preview.partition('hx-post="')[2].partition('"')[0]
        answered = unescape((await client.post(address, data=asked)).text)
        assert "$2.00 to $4.00 an hour for 1 to 2 nodes; no budget bounds it" in answered
        assert "launch for eu" in unescape(TAG.sub("", answered))
        assert 'data-tone="bad"' not in answered
        assert "hx-post" not in answered, "it does not ask again by itself"
        checked = await client.post("/runs/new", data={**asked, "set.fleet.budget.usd_per_hour_max": "3", "check": "1"})
        assert "$2.00 to $3.00 an hour for 1 to 2 nodes; never more than $3.00 an hour" in checked.text
        without = (await client.post("/runs/new/preview", data={"recipe": "here", "set.stop.steps": "7"})).text
        assert "its recipe&#39;s pools are left out" in without
        assert "hx-post" not in without


async def test_a_provider_that_would_not_start_a_machine_is_told_before_the_launch(
    recipes: Path, tmp_path: Path
) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        asked = {"recipe": "here", "fleet": "on", "set.fleet.pools.eu.type": "enormous"}
        answered = unescape((await client.post("/runs/new/rehearsal", data=asked)).text)
        assert 'data-tone="bad"' in answered
        assert "no machine type is called 'enormous'" in answered
        assert "Correct what is named" in answered
        wrong = await client.post("/runs/new", data={**asked, "set.fleet.pools.eu.max_nodes": "-3"})
        assert wrong.status_code == 422
        field = wrong.text.partition('id="field-fleet-pools-eu-max_nodes"')[2].partition("</div>")[0]
        assert "field-problem" in field


async def test_lists_of_plug_ins_are_chosen_by_name_and_keep_their_options(recipes: Path, tmp_path: Path) -> None:
    (recipes / "listed.toml").write_text(
        'extends = "smoke"\nname = "listed"\nflows.train.filters = [{ kind = "length", max_tokens = 9 }]\n'
    )
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        form = (await client.get("/runs/new", params={"recipe": "listed"})).text
        assert form.count('name="set.flows.train.filters"') == 2, "what is there, and a row for one more"
        key = "set.flows.train.filters"
        unchanged = {"recipe": "listed", key: ["length", ""]}
        assert "--set" not in (await client.post("/runs/new/preview", data=unchanged)).text
        more = {"recipe": "listed", key: ["length", "informative"]}
        preview = unescape((await client.post("/runs/new/preview", data=more)).text)
        assert 'flows.train.filters = [{kind = "length", max_tokens = 9}, {kind = "informative"}]' in preview
        assert "Ready to launch" in preview
        answer = await ask(client, "list", recipe="listed", set={"flows.train.filters": "informative"})
        assert answer.status_code == 201, answer.text
        refused = await ask(client, "worse", recipe="listed", set={"flows.train.filters": "informativ"})
        assert refused.status_code == 409
        assert "informative" in refused.json()["detail"]


async def test_another_kind_of_environment_is_told_what_it_has_to_know(recipes: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    async with page_of(tmp_path, recipes=(recipes,), data=(str(tmp_path),)) as (_, client):
        chosen = {"recipe": "smoke", "set.flows.train.dataset.kind": "jsonl", "check": "1"}
        form = (await client.post("/runs/new", data=chosen)).text
        assert 'name="set.flows.train.dataset.path"' in form, "what it can be told is asked once it is chosen"
        assert "Not yet" in form
        filled = {**chosen, "set.flows.train.dataset.path": str(data)}
        told_all = unescape((await client.post("/runs/new", data=filled)).text)
        assert f'flows.train.dataset.path = "{data}"' in told_all
        assert "Ready to launch" in told_all
        settings = {"flows.train.dataset.kind": "jsonl", "flows.train.dataset.path": str(data)}
        assert (await ask(client, "jsonl", recipe="smoke", set=settings)).status_code == 201


async def test_machines_elsewhere_take_an_address_that_they_reach(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        refused = await client.post("/runs/new", data={"recipe": "elsewhere"})
        assert refused.status_code == 422
        assert "--join-host ADDRESS" in refused.text
        by_api = await ask(client, "one", recipe="elsewhere")
        assert by_api.status_code == 409
        assert "the machines of gpu stand elsewhere" in by_api.json()["detail"]
        assert told(await ask(client, "two", recipe="elsewhere", fleet=False))["fleet"] is False


async def test_a_page_that_was_told_its_address_has_runs_listen_there(recipes: Path, tmp_path: Path) -> None:
    known = {"join_host": EVERYWHERE, "join_name": "runs.example.org"}
    async with page_of(tmp_path, recipes=(recipes,), **known) as (_, client):
        preview = (await client.post("/runs/new/preview", data={"recipe": "elsewhere"})).text
        assert f"--host {EVERYWHERE} --advertise runs.example.org" in preview
        assert "Ready to launch" in preview
        near = (await client.post("/runs/new/preview", data={"recipe": "here"})).text
        assert "--host" not in near, "who needs no strangers lets none in"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"join_host": "127.0.0.1"}, "--join-host: 127.0.0.1 is each machine's own loopback"),
        ({"join_host": EVERYWHERE}, f"--join-host: {EVERYWHERE} is every address"),
        ({"join_host": "10.0.0.5", "join_name": "-x"}, "--join-name: '-x' is no host name"),
        ({"join_name": "runs.example.org"}, "--join-name goes with --join-host"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_at_the_start(
    given: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        Settings(directory=tmp_path, **given).check()
    assert says in str(refused.value)


def test_a_folder_of_recipes_that_anybody_may_write_to_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for folder, says in {"open": "everybody may write", "absent": "No such file", "own.toml": "is no folder"}.items():
        (tmp_path / "own.toml").touch()
        with pytest.raises(InvalidInput, match=says):
            Settings(directory=tmp_path, recipes=(tmp_path / folder,)).check()


async def test_another_run_like_it_is_started_in_the_same_way(
    recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    async with page_of(tmp_path) as (_, client):
        how = {"fleet": True, "ends_by_itself": False, "limit_s": 77}
        first = told(await ask(client, "first", recipe="smoke", **how))
        form = (await client.get("/runs/new", params={"of": first["name"]})).text
        assert 'name="fleet" checked' in form
        assert 'name="ends_by_itself" checked' not in form
        assert 'value="77"' in form
        by_page = await client.post("/runs/new", data={"of": first["name"]})
        name = by_page.headers["location"].removeprefix("/launches/")
        answers = [
            (await client.get(f"/api/v1/launches/{name}")).json(),
            told(await ask(client, "clone", of=first["name"])),
        ]
        for answer in answers:
            assert {key: answer[key] for key in how} == how
        other = told(await ask(client, "other", of=first["name"], ends_by_itself=True, limit_s=None))
        assert (other["fleet"], other["ends_by_itself"], other["limit_s"]) == (True, True, None)
