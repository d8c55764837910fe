"""Launches of recipes that declare machines: their fleets, and the address at which remote machines join."""

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.http.hosts import WILDCARDS
from tests.errors import raises_code
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import parsed
from web.process_settings import Settings

EVERYWHERE = WILDCARDS[0]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.timeout(600)]

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
    """Folder with declared recipes, one of them invalid."""
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


def created(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def ask(client: httpx.AsyncClient, key: str, **body: Any) -> httpx.Response:
    return await client.post(
        "/api/v1/launches", json={"reason": "a look", **body}, headers={"Idempotency-Key": f"key-{key}"}
    )


async def test_a_declared_recipe_has_a_card_and_an_invalid_one_is_not_launched(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        cards = parsed(await client.get("/runs/new?is_whole=true"))
        assert "/runs/new?recipe=here" in cards.links()
        assert [card.one("h3").text for card in cards.all(".recipe-row") if card.has(".field-problem")] == ["torn"]
        assert "/runs/new?recipe=torn" not in cards.links()
        for name in ("torn", str(recipes / "here.toml"), "../recipes/here"):
            assert (await client.post("/runs/new", data={"recipe": name})).status_code == 422, name
        refused = await ask(client, "torn", recipe="torn")
        assert (refused.status_code, refused.json()["code"]) == (404, "recipe.cannot_launch")
        assert (await client.get("/api/v1/launches")).json()["total"] == 0


@pytest.mark.long
async def test_a_recipe_with_pools_is_launched_with_a_fleet_service_by_default(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        form = parsed(await client.get("/runs/new", params={"recipe": "here"}))
        assert "checked" in form.one("input[name=fleet]")
        assert any("--fleet" in words for words in form.commands())
        by_page = await client.post("/runs/new", data={"recipe": "here"})
        name = by_page.headers["location"].removeprefix("/launches/")
        assert (await client.get(f"/api/v1/launches/{name}")).json()["fleet"] is True
        assert created(await ask(client, "own", recipe="here"))["fleet"] is True
        assert created(await ask(client, "without", recipe="here", fleet=False))["fleet"] is False
        assert created(await ask(client, "smoke", recipe="smoke"))["fleet"] is False


@pytest.mark.long
async def test_the_preview_checks_the_providers_and_shows_the_cost(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        form = {"recipe": "here", "fleet": "on", "set.fleet.pools.eu.max_nodes": "2", "set.stop.steps": "7"}
        preview = parsed(await client.post("/runs/new/preview", data=form))
        instances = preview.one("[data-part=instances]")
        assert instances.numbers == [1, 2]
        assert all(value in instances.text for value in ("eu", "here", "local_process"))
        address = preview.one("[hx-post]")["hx-post"]
        answered = parsed(await client.post(address, data=form))
        assert answered.one("[data-part=cost]").numbers == [2, 4, 1, 2], "dollars per hour and nodes"
        assert ["here", "eu"] in [check.texts("bdi")[:2] for check in answered.all("li[data-tone=good]")]
        assert not answered.has("[data-tone=bad]")
        assert not answered.has("[hx-post]"), "the preview is not requested again"
        checked = await client.post("/runs/new", data={**form, "set.fleet.budget.usd_per_hour_max": "3", "check": "1"})
        assert parsed(checked).one("[data-part=cost]").numbers == [2, 3, 1, 2, 3], "the last is the limit"
        without = parsed(await client.post("/runs/new/preview", data={"recipe": "here", "set.stop.steps": "7"}))
        assert without.one("[data-part=instances]").numbers == without.one("[data-part=cost]").numbers == []
        assert not without.has("[hx-post]")


async def test_a_failed_preflight_check_is_shown_before_the_launch(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        form = {"recipe": "here", "fleet": "on", "set.fleet.pools.eu.type": "enormous"}
        failed = parsed(await client.post("/runs/new/preflight", data=form)).all("li[data-tone=bad]")
        assert any("'enormous'" in check.text and check.has("[data-part=remedy]") for check in failed)
        wrong = await client.post("/runs/new", data={**form, "set.fleet.pools.eu.max_nodes": "-3"})
        assert wrong.status_code == 422
        field = wrong.text.partition('id="field-fleet-pools-eu-max_nodes"')[2].partition("</div>")[0]
        assert "field-problem" in field


@pytest.mark.long
async def test_lists_of_plugins_are_chosen_by_name_and_keep_their_options(recipes: Path, tmp_path: Path) -> None:
    (recipes / "listed.toml").write_text(
        'extends = "smoke"\nname = "listed"\nflows.train.filters = [{ kind = "length", max_tokens = 9 }]\n'
    )
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        form = (await client.get("/runs/new", params={"recipe": "listed"})).text
        assert form.count('name="set.flows.train.filters"') == 2, "current plugins and one empty row"
        key = "set.flows.train.filters"
        unchanged = {"recipe": "listed", key: ["length", ""]}
        assert "--set" not in (await client.post("/runs/new/preview", data=unchanged)).text
        more = {"recipe": "listed", key: ["length", "informative"]}
        preview = parsed(await client.post("/runs/new/preview", data=more)).one("#preview")
        (toml,) = [block.raw_text for block in preview.all("pre.command") if block.raw_text.startswith("extends")]
        filters = tomllib.loads(toml)["flows"]["train"]["filters"]
        assert filters == [{"kind": "length", "max_tokens": 9}, {"kind": "informative"}]
        assert preview["data-state"] == "ready"
        answer = await ask(client, "list", recipe="listed", set={"flows.train.filters": "informative"})
        assert answer.status_code == 201, answer.text
        refused = await ask(client, "worse", recipe="listed", set={"flows.train.filters": "informativ"})
        assert refused.status_code == 409
        assert "informative" in refused.json()["detail"]


async def test_the_form_shows_the_fields_of_the_chosen_dataset_kind(recipes: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    async with page_of(tmp_path, recipes=(recipes,), data=(str(tmp_path),)) as (_, client):
        chosen = {"recipe": "smoke", "set.flows.train.dataset.kind": "jsonl", "check": "1"}
        form = parsed(await client.post("/runs/new", data=chosen))
        assert form.has("[name=set.flows.train.dataset.path]"), "the fields of the chosen kind are shown"
        assert form.one("#preview")["data-state"] == "incomplete"
        filled = {**chosen, "set.flows.train.dataset.path": str(data)}
        preview = parsed(await client.post("/runs/new", data=filled)).one("#preview")
        assert ["flows.train.dataset.path", "=", f'"{data}"'] in preview.commands()
        assert preview["data-state"] == "ready"
        settings = {"flows.train.dataset.kind": "jsonl", "flows.train.dataset.path": str(data)}
        assert (await ask(client, "jsonl", recipe="smoke", set=settings)).status_code == 201


async def test_remote_pools_need_a_join_address(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        refused = await client.post("/runs/new", data={"recipe": "elsewhere"})
        assert refused.status_code == 422
        assert "--join-host" in refused.text
        by_api = await ask(client, "one", recipe="elsewhere")
        assert (by_api.status_code, by_api.json()["code"]) == (409, "launch.invalid")
        assert all(value in by_api.json()["detail"] for value in ("gpu", "--join-host"))
        assert created(await ask(client, "two", recipe="elsewhere", fleet=False))["fleet"] is False


@pytest.mark.long
async def test_runs_with_remote_pools_listen_at_the_join_address(recipes: Path, tmp_path: Path) -> None:
    known = {"join_host": EVERYWHERE, "join_name": "runs.example.org"}
    async with page_of(tmp_path, recipes=(recipes,), **known) as (_, client):
        preview = parsed(await client.post("/runs/new/preview", data={"recipe": "elsewhere"})).one("#preview")
        (command,) = [words for words in preview.commands() if words[:2] == ["astraflow", "run"]]
        at = command.index("--host")
        assert command[at : at + 4] == ["--host", EVERYWHERE, "--advertise", "runs.example.org"]
        assert preview["data-state"] == "ready"
        near = (await client.post("/runs/new/preview", data={"recipe": "here"})).text
        assert "--host" not in near, "without remote pools the run listens on loopback"


@pytest.mark.parametrize(
    ("arguments", "code", "quoted"),
    [
        ({"join_host": "127.0.0.1"}, "host.not_reachable", "127.0.0.1"),
        ({"join_host": EVERYWHERE}, "host.not_reachable", EVERYWHERE),
        ({"join_host": "10.0.0.5", "join_name": "-x"}, "host.invalid", "'-x'"),
        ({"join_name": "runs.example.org"}, "web.join_host_missing", "--join-host"),
    ],
)
def test_an_invalid_join_address_is_refused_at_the_start(
    arguments: dict[str, str], code: str, quoted: str, tmp_path: Path
) -> None:
    with raises_code(InvalidInput, code, quoted):
        Settings(directory=tmp_path, **arguments).check()


def test_an_unsafe_recipe_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for folder, says in {"open": "every user may write", "absent": "No such file", "own.toml": "not a folder"}.items():
        (tmp_path / "own.toml").touch()
        with raises_code(InvalidInput, "web.invalid_recipe_folder", says):
            Settings(directory=tmp_path, recipes=(tmp_path / folder,)).check()


async def test_a_clone_is_launched_with_the_same_options(
    recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    async with page_of(tmp_path) as (_, client):
        how = {"fleet": True, "ends_by_itself": False, "limit_s": 77}
        first = created(await ask(client, "first", recipe="smoke", **how))
        form = parsed(await client.get("/runs/new", params={"of": first["name"]}))
        assert "checked" in form.one("input[name=fleet]")
        assert "checked" not in form.one("input[name=ends_by_itself]")
        assert form.one("input[name=limit_s]")["value"] == "77"
        by_page = await client.post("/runs/new", data={"of": first["name"]})
        name = by_page.headers["location"].removeprefix("/launches/")
        answers = [
            (await client.get(f"/api/v1/launches/{name}")).json(),
            created(await ask(client, "clone", of=first["name"])),
        ]
        for answer in answers:
            assert {key: answer[key] for key in how} == how
        other = created(await ask(client, "other", of=first["name"], ends_by_itself=True, limit_s=None))
        assert (other["fleet"], other["ends_by_itself"], other["limit_s"]) == (True, True, None)
